"""Ops of a model ready to be timed: matrix products, row ops, the optimizer's step, attention; each checked in fp64.

gemm            y[m, n] = x[m, k] w[n, k]^T, the forward of a linear layer (TN to BLAS)
  impl torch    that;  torch_nn  y = x[m, k] w[k, n], its input gradient;  torch_nt  y = x[k, m]^T w[k, n], its
                weight gradient;  scaled_mm  fp8 with one scale a tensor;  int_mm  int8 into int32
grouped_gemm    the same, `groups` times with m rows each: grouped_mm in one kernel, or a loop of products

rmsnorm, layernorm, softmax   one tensor in, one out        swiglu   silu(gate) * up, columns = the result's
add_rmsnorm   residual + x, and its norm: two in, two out   rope     half-split rotation, heads of 128 columns
cross_entropy mean loss of rows tokens over columns words   embedding  rows tokens of columns from a 32768-word table
add           x + y                                         adamw    one step over `parameters`

attention       impl flash, cudnn, efficient, math: the backends of scaled_dot_product_attention; flex: FlexAttention,
                compiled. Tensors are [batch, heads, tokens, head_dim] as views of [batch, tokens, heads, head_dim], the
                layout models have; flash_bhsd and cudnn_bhsd are the same backends on contiguous tensors.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe.case import KernelCase

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

from ridgeline.runtime.probe.timing import (
    DTYPES,
    Bench,
    Call,
    Lacking,
    Prepared,
    random,
    relative_error,
    sets_for,
    some,
    tolerance_of,
)

SAMPLED_ROWS, SAMPLED_COLUMNS = 16, 64
ProductSet = tuple[Call, Tensor, Tensor, Tensor]
"""Call, output, and the two factors as [m, k] and [k, n]."""


def gemm(case: KernelCase, bench: Bench) -> Prepared:
    """A product ready to run; x is rotated with w, so that weights come from main memory as in a model.

    A case that says `cold` false uses one set again and again, so that a small product finds its factors in the cache.
    """
    if case.kernel.dtype == "tf32" and bench.backend.type != "cuda":
        raise Lacking("tf32 is a mode of CUDA's matrix units")
    torch.backends.cuda.matmul.allow_tf32 = case.kernel.dtype == "tf32"
    makers = {"scaled_mm": _scaled_set, "int_mm": _int_set}
    make = makers.get(case.kernel.impl, _plain_set)
    count = sets_for(bench, case.kernel.bytes) if case.kernel.dims.get("cold", True) else 1
    first = make(case, bench)
    sets = [first, *(make(case, bench) for _ in range(count - 1))]
    return Prepared(
        calls=[pair[0] for pair in sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check_product(*first),
        tolerance=tolerance_of(case.kernel.dtype),
    )


def _plain_set(case: KernelCase, bench: Bench) -> ProductSet:
    m, n, k, dtype = case["m"], case["n"], case["k"], DTYPES[case.kernel.dtype]
    x = random(bench, *((k, m) if case.kernel.impl == "torch_nt" else (m, k)), dtype=dtype)
    w = random(bench, *((n, k) if case.kernel.impl == "torch" else (k, n)), dtype=dtype)
    left_operand = x.t() if case.kernel.impl == "torch_nt" else x
    right = w.t() if case.kernel.impl == "torch" else w
    out = torch.full((m, n), float("nan"), device=bench.backend.name, dtype=dtype)
    return (lambda: torch.mm(left_operand, right, out=out)), out, left_operand, right


def _scaled_set(case: KernelCase, bench: Bench) -> ProductSet:
    if DTYPES["fp8"] is None or not hasattr(torch, "_scaled_mm"):
        raise Lacking(f"torch {torch.__version__} has no scaled product of fp8")
    m, n, k = case["m"], case["n"], case["k"]
    x, w = (random(bench, *shape, dtype=DTYPES["fp8"]) for shape in ((m, k), (n, k)))
    unit_scale = torch.ones((), device=bench.backend.name)
    out = torch.full((m, n), float("nan"), device=bench.backend.name, dtype=torch.bfloat16)

    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True, "out": out}
    return (lambda: torch._scaled_mm(x, w.t(), unit_scale, unit_scale, **options)), out, x, w.t()


def _int_set(case: KernelCase, bench: Bench) -> ProductSet:
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"device": bench.backend.name, "dtype": torch.int8}
    x, w = torch.randint(-127, 128, (m, k), **draw), torch.randint(-127, 128, (n, k), **draw)
    out = torch.zeros((m, n), device=bench.backend.name, dtype=torch.int32)
    return (lambda: torch._int_mm(x, w.t(), out=out)), out, x, w.t()


def _check_product(call: Call, out: Tensor, left: Tensor, right: Tensor) -> float:
    """Error of sampled rows and columns against fp64; every element must have been written."""
    call()
    if out.is_floating_point() and not bool(torch.isfinite(out).all()):
        return float("inf")
    rows, columns = some(out.shape[0], SAMPLED_ROWS).to(out.device), some(out.shape[1], SAMPLED_COLUMNS).to(out.device)
    return relative_error(
        out[rows][:, columns], _wide(_pick_rows(left, rows)) @ _wide(_pick_rows(right.t(), columns)).t()
    )


def _pick_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Some rows; formats of one byte go by way of bytes, which every backend can index."""
    return values.view(torch.uint8)[rows].view(values.dtype) if values.dtype.itemsize == 1 else values[rows]


def _wide(values: Tensor) -> Tensor:
    """Values as fp64, by way of fp32 where a format converts no other way; on devices without fp64 they stay fp32."""
    wide = values.float() if values.dtype.itemsize < 4 else values
    try:
        return wide.double()
    except (TypeError, RuntimeError):
        return wide


def grouped_gemm(case: KernelCase, bench: Bench) -> Prepared:
    """Products of equal size side by side, one for every expert a rank holds."""
    groups, m, n, k = case["groups"], case["m"], case["n"], case["k"]
    dtype = DTYPES[case.kernel.dtype]
    if case.kernel.impl == "grouped_mm" and not hasattr(torch, "_grouped_mm"):
        raise Lacking(f"torch {torch.__version__} has no _grouped_mm")

    def one_set() -> tuple[Callable[[], Tensor], Tensor, Tensor]:
        x = random(bench, groups * m, k, dtype=dtype)
        w = random(bench, groups, n, k, dtype=dtype)
        if case.kernel.impl == "grouped_mm":
            ends = torch.arange(1, groups + 1, device=bench.backend.name, dtype=torch.int32) * m
            return (lambda: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)), x, w
        out = torch.empty(groups * m, n, device=bench.backend.name, dtype=dtype)

        def loop() -> Tensor:
            for at in range(groups):
                torch.mm(x[at * m : (at + 1) * m], w[at].t(), out=out[at * m : (at + 1) * m])
            return out

        return loop, x, w

    sets = [one_set() for _ in range(sets_for(bench, case.kernel.bytes))]
    call, x, w = sets[0]

    def check() -> float:
        out = call()
        at, rows = groups - 1, some(m, min(m, SAMPLED_ROWS)).to(x.device)
        reference = _wide(x[at * m : (at + 1) * m][rows]) @ _wide(w[at]).t()
        return relative_error(out[at * m : (at + 1) * m][rows], reference)

    calls = [pair[0] for pair in sets]
    return Prepared(calls=calls, set_bytes=case.kernel.bytes, check=check, tolerance=tolerance_of(case.kernel.dtype))


HEAD_DIM = 128  # of the rope case
WORDS = 32768  # rows of the embedding table
EPS = 1e-6
PARAMETER_TENSORS = 8


def _add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return functional.rms_norm(total, weight.shape, weight, EPS), total


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


FUNCTIONS: dict[str, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {
    "rmsnorm": lambda x, weight: functional.rms_norm(x, weight.shape, weight, EPS),
    "layernorm": lambda x, weight: functional.layer_norm(x, weight.shape, weight, weight, EPS),
    "add_rmsnorm": _add_rmsnorm,
    "swiglu": lambda gate, up: functional.silu(gate) * up,
    "rope": _rope,
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x, target: functional.cross_entropy(x.float(), target),
    "embedding": lambda table, tokens: functional.embedding(tokens, table),
    "add": lambda x, y: x + y,
}


def row_op(case: KernelCase, bench: Bench) -> Prepared:
    run = FUNCTIONS[case.kernel.op]
    if case.kernel.impl == "compiled":
        torch._dynamo.reset()
        run = torch.compile(run, dynamic=False)
    sets = [_row_inputs(case, bench) for _ in range(sets_for(bench, case.kernel.bytes))]
    return Prepared(
        calls=[partial(run, *inputs) for inputs in sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check_rows(case, run(*sets[0]), sets[0]),
        tolerance=tolerance_of(case.kernel.dtype),
    )


def _row_inputs(case: KernelCase, bench: Bench) -> list[Tensor]:
    rows, columns, dtype, device = case["rows"], case["columns"], DTYPES[case.kernel.dtype], bench.backend.name
    if case.kernel.op == "embedding":
        table = random(bench, WORDS, columns, dtype=dtype)
        return [table, torch.randint(WORDS, (rows,), device=device)]
    if case.kernel.op == "rope":
        angles = torch.rand(rows, 1, HEAD_DIM, device=device)
        x = random(bench, rows, columns // HEAD_DIM, HEAD_DIM, dtype=dtype)
        return [x, angles.cos().to(dtype), angles.sin().to(dtype)]
    x = random(bench, rows, columns, dtype=dtype)
    if case.kernel.op == "cross_entropy":
        return [x, torch.randint(columns, (rows,), device=device)]
    if case.kernel.op in ("swiglu", "add"):
        return [x, random(bench, rows, columns, dtype=dtype)]
    if case.kernel.op == "softmax":
        return [x]
    weight = random(bench, columns, dtype=dtype)
    return [x, random(bench, rows, columns, dtype=dtype), weight] if case.kernel.op == "add_rmsnorm" else [x, weight]


def _check_rows(case: KernelCase, found: Tensor, inputs: Sequence[Tensor]) -> float:
    """Sampled rows against the same function in fp32; the loss whole."""
    if case.kernel.op == "cross_entropy":
        return relative_error(found, functional.cross_entropy(inputs[0].double(), inputs[1]))
    if case.kernel.op == "embedding":
        return relative_error(found[-1], inputs[0][inputs[1][-1]])
    rows = some(case["rows"], min(16, case["rows"])).to(inputs[0].device)
    sample_inputs = [tensor[rows].float() if tensor.dim() > 1 else tensor.float() for tensor in inputs]
    references = FUNCTIONS[case.kernel.op](*sample_inputs)
    pairs = zip(found, references, strict=True) if isinstance(found, tuple) else [(found, references)]
    return max(relative_error(output[rows], reference) for output, reference in pairs)


def adamw(case: KernelCase, bench: Bench) -> Prepared:
    """One step of AdamW over tensors that sum to `parameters`; states have the format of the parameters."""
    size, dtype = case["parameters"] // PARAMETER_TENSORS, DTYPES[case.kernel.dtype]
    parameters = [random(bench, size, dtype=dtype, scale=0.02).requires_grad_() for _ in range(PARAMETER_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    is_fused = case.kernel.impl == "fused"
    settings: JsonObject = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
    capturable = bench.backend.graph is not None
    try:
        optimizer = torch.optim.AdamW(
            parameters, fused=is_fused, foreach=not is_fused, capturable=capturable, **settings
        )
    except RuntimeError as wrong:
        raise Lacking(str(wrong)) from None
    before, gradient = parameters[-1].detach()[-256:].double(), parameters[-1].grad[-256:].double()

    def check() -> float:
        optimizer.step()
        wanted_weights = before * (1 - 1e-3 * 0.1) - 1e-3 * gradient / (gradient.abs() + 1e-8)
        return relative_error(parameters[-1].detach()[-256:], wanted_weights)

    return Prepared(
        calls=[optimizer.step], set_bytes=case.kernel.bytes, check=check, tolerance=tolerance_of(case.kernel.dtype)
    )


BACKENDS = {name: f"{name.upper()}_ATTENTION" for name in ("flash", "cudnn", "efficient")}
BACKENDS |= {"math": "MATH", "overrideable": "OVERRIDEABLE"}
HEADS_FIRST = "_bhsd"  # ends the name of an implementation whose tensors are contiguous with heads before tokens
LONGEST_WHOLE_CHECK = 4096  # tokens up to which a head's gradients are checked whole


def attention_forward(case: KernelCase, bench: Bench) -> Prepared:
    """Attention of a training or prefill step, or of decode where there is one query a sequence."""
    run = _runner(case)
    sets = [_attention_inputs(case, bench) for _ in range(sets_for(bench, case.kernel.bytes))]
    return Prepared(
        calls=[partial(torch.no_grad()(run), *inputs) for inputs in sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check_forward(run(*sets[0]), *sets[0], causal=case["causal"]),
        tolerance=tolerance_of(case.kernel.dtype),
    )


def attention_backward(case: KernelCase, bench: Bench) -> Prepared:
    """Gradients of q, k and v given that of the output; the forward is not counted."""
    run = _runner(case)
    backward_sets = []
    for _ in range(sets_for(bench, 2 * case.kernel.bytes)):
        leaves = [tensor.detach().requires_grad_() for tensor in _attention_inputs(case, bench)]
        out = run(*leaves)
        backward_sets.append((out, leaves, torch.randn_like(out)))
    return Prepared(
        calls=[partial(torch.autograd.grad, *backward_set, retain_graph=True) for backward_set in backward_sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check_backward(case, *backward_sets[0]),
        tolerance=2 * tolerance_of(case.kernel.dtype),
    )


def _attention_inputs(case: KernelCase, bench: Bench) -> list[Tensor]:
    batch, head_dim = case["batch"], case["head_dim"]
    heads = ((case["query"], case["heads"]), (case["key"], case["kv_heads"]), (case["key"], case["kv_heads"]))
    options = {"device": bench.backend.name, "dtype": DTYPES[case.kernel.dtype]}
    if case.kernel.impl.endswith(HEADS_FIRST):
        return [torch.randn(batch, count, tokens, head_dim, **options) for tokens, count in heads]
    return [torch.randn(batch, tokens, count, head_dim, **options).transpose(1, 2) for tokens, count in heads]


def _runner(case: KernelCase) -> Callable[..., Tensor]:
    causal, is_grouped = case["causal"], case["heads"] != case["kv_heads"]
    if case.kernel.impl == "flex":
        return _flex(causal, is_grouped)
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = getattr(SDPBackend, BACKENDS[case.kernel.impl.removesuffix(HEADS_FIRST)])
    except (ImportError, AttributeError):
        raise Lacking(f"torch {torch.__version__} has no attention backend {case.kernel.impl!r}") from None
    extra = {"enable_gqa": True} if is_grouped else {}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([chosen]):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **extra)

    return run


def _causal_mask(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _flex(causal: bool, grouped: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    masks: dict[tuple[int, int], BlockMask] = {}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size = (q.shape[2], k.shape[2])
        if causal and size not in masks:
            masks[size] = create_block_mask(_causal_mask, None, None, *size, device=str(q.device))
        return flex(q, k, v, block_mask=masks.get(size), enable_gqa=grouped)

    return run


def _check_forward(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> float:
    if not bool(torch.isfinite(out).all()):
        return math.inf
    head, kv = q.shape[1] - 1, k.shape[1] - 1  # the last query head and the one it attends with
    rows = sorted({0, q.shape[2] // 2, q.shape[2] - 1, int(torch.randint(q.shape[2], ()))})
    _, probabilities = _probabilities(q[-1, head], k[-1, kv], rows, causal)
    return relative_error(out[-1, head][rows], probabilities @ v[-1, kv].double())


def _probabilities(q: Tensor, k: Tensor, rows: list[int], causal: bool) -> tuple[float, Tensor]:
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q[rows].double() @ k.double().t() * scale
    if causal:
        places = torch.tensor(rows, device=q.device)[:, None]
        scores = scores.masked_fill(torch.arange(k.shape[0], device=q.device)[None] > places, -math.inf)
    return scale, scores.softmax(-1)


def _check_backward(case: KernelCase, out: Tensor, leaves: Sequence[Tensor], grad: Tensor) -> float:
    """Gradient of sampled queries in fp64, and of all keys and values of one head where the square is affordable."""
    q, k, v = (tensor.detach() for tensor in leaves)
    gradients = torch.autograd.grad(out, leaves, grad, retain_graph=True)
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        return math.inf
    head, kv = case["heads"] - 1, case["kv_heads"] - 1
    rows = sorted({0, q.shape[2] // 2, q.shape[2] - 1})
    scale, p = _probabilities(q[-1, head], k[-1, kv], rows, case["causal"])
    down = grad[-1, head][rows].double()
    value_scores = down @ v[-1, kv].double().t()
    score_grad = p * (value_scores - (value_scores * p).sum(-1, keepdim=True))
    error = relative_error(gradients[0][-1, head][rows], score_grad @ k[-1, kv].double() * scale)
    if case["key"] <= LONGEST_WHOLE_CHECK:
        error = max(error, _whole_head(case, (q, k, v), grad, gradients))
    return error


def _whole_head(case: KernelCase, inputs: Sequence[Tensor], grad: Tensor, found: Sequence[Tensor]) -> float:
    """Errors of dk and dv of the last key-value head, every query head that shares it counted."""
    q, k, v = inputs
    share = case["heads"] // case["kv_heads"]
    with contextlib.suppress(torch.OutOfMemoryError), torch.enable_grad():
        keys, values = (tensor[-1, -1].float().requires_grad_() for tensor in (k, v))
        total = torch.zeros((), device=q.device)
        for head in range(case["heads"] - share, case["heads"]):
            scores = q[-1, head].float() @ keys.t() / math.sqrt(q.shape[-1])
            if case["causal"]:
                above = torch.ones(scores.shape, device=q.device, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(above, -math.inf)
            total = total + ((scores.softmax(-1) @ values) * grad[-1, head].float()).sum()
        references = torch.autograd.grad(total, (keys, values))
        return max(relative_error(gradient[-1, -1], ref) for gradient, ref in zip(found[1:], references, strict=True))
    return 0.0
