"""Attention per implementation and head layout: forward, backward, and decode of one query against a long cache.

    impl   flash, cudnn, efficient, math: the backends of scaled_dot_product_attention; flex: FlexAttention, compiled

Tensors are [batch, heads, tokens, head_dim] as views of [batch, tokens, heads, head_dim], the layout models have;
flash_bhsd and cudnn_bhsd are the same backends on tensors that are contiguous as they stand.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.kernel import DTYPES, Bench, Lacking, Prepared, relative_error, sets_for, tolerance_of

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
    "overrideable": "OVERRIDEABLE",
}
HEADS_FIRST = "_bhsd"  # ends the name of an implementation whose tensors are contiguous with heads before tokens
LONGEST_WHOLE_CHECK = 4096  # tokens up to which a head's gradients are checked whole


def forward(case: Case, bench: Bench) -> Prepared:
    """Attention of a training or prefill step, or of decode where there is one query a sequence."""
    run = _runner(case)
    sets = [_inputs(case, bench) for _ in range(sets_for(bench, case.kernel.bytes))]
    return Prepared(
        calls=[_bind(run, inputs) for inputs in sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check_forward(run(*sets[0]), *sets[0], causal=case["causal"]),
        tolerance=tolerance_of(case.kernel.dtype),
    )


def backward(case: Case, bench: Bench) -> Prepared:
    """Gradients of q, k and v given that of the output; the forward is not counted."""
    run = _runner(case)
    backward_sets = []
    for _ in range(sets_for(bench, 2 * case.kernel.bytes)):
        leaves = [tensor.detach().requires_grad_() for tensor in _inputs(case, bench)]
        out = run(*leaves)
        backward_sets.append((out, leaves, torch.randn_like(out)))

    def bind(out: Any, leaves: Any, grad: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)

    return Prepared(
        calls=[bind(*backward_set) for backward_set in backward_sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check_backward(case, *backward_sets[0]),
        tolerance=2 * tolerance_of(case.kernel.dtype),
    )


def _bind(run: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return run(*inputs)

    return call


def _inputs(case: Case, bench: Bench) -> list[Any]:
    batch, head_dim = case["batch"], case["head_dim"]
    heads = ((case["query"], case["heads"]), (case["key"], case["kv_heads"]), (case["key"], case["kv_heads"]))
    options = {"device": bench.backend.name, "dtype": DTYPES[case.kernel.dtype]}
    if case.kernel.impl.endswith(HEADS_FIRST):
        return [torch.randn(batch, count, tokens, head_dim, **options) for tokens, count in heads]
    return [torch.randn(batch, tokens, count, head_dim, **options).transpose(1, 2) for tokens, count in heads]


def _runner(case: Case) -> Callable[..., Any]:
    causal, is_grouped = case["causal"], case["heads"] != case["kv_heads"]
    if case.kernel.impl == "flex":
        return _flex(causal, is_grouped)
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = getattr(SDPBackend, BACKENDS[case.kernel.impl.removesuffix(HEADS_FIRST)])
    except (ImportError, AttributeError):
        raise Lacking(f"torch {torch.__version__} has no attention backend {case.kernel.impl!r}") from None
    extra = {"enable_gqa": True} if is_grouped else {}

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel([chosen]):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **extra)

    return run


def _causal_mask(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    return query >= key


def _flex(causal: bool, grouped: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    masks: dict[tuple[int, int], Any] = {}

    def run(q: Any, k: Any, v: Any) -> Any:
        size = (q.shape[2], k.shape[2])
        if causal and size not in masks:
            masks[size] = create_block_mask(_causal_mask, None, None, *size, device=str(q.device))
        return flex(q, k, v, block_mask=masks.get(size), enable_gqa=grouped)

    return run


def _head(case_heads: int, kv_heads: int) -> tuple[int, int]:
    """The last query head and the key-value head it attends with."""
    return case_heads - 1, kv_heads - 1


def _check_forward(out: Any, q: Any, k: Any, v: Any, *, causal: bool) -> float:
    """Sampled query rows of the last head in fp64."""
    if not bool(torch.isfinite(out).all()):
        return math.inf
    head, kv = _head(q.shape[1], k.shape[1])
    rows = sorted({0, q.shape[2] // 2, q.shape[2] - 1, int(torch.randint(q.shape[2], ()))})
    _, probabilities = _probabilities(q[-1, head], k[-1, kv], rows, causal)
    return relative_error(out[-1, head][rows], probabilities @ v[-1, kv].double())


def _probabilities(q: Any, k: Any, rows: list[int], causal: bool) -> tuple[float, Any]:
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q[rows].double() @ k.double().t() * scale
    if causal:
        places = torch.tensor(rows, device=q.device)[:, None]
        scores = scores.masked_fill(torch.arange(k.shape[0], device=q.device)[None] > places, -math.inf)
    return scale, scores.softmax(-1)


def _check_backward(case: Case, out: Any, leaves: Any, grad: Any) -> float:
    """Gradient of sampled queries in fp64, and of all keys and values of one head where the square is affordable."""
    q, k, v = (tensor.detach() for tensor in leaves)
    gradients = torch.autograd.grad(out, leaves, grad, retain_graph=True)
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        return math.inf
    head, kv = _head(case["heads"], case["kv_heads"])
    rows = sorted({0, q.shape[2] // 2, q.shape[2] - 1})
    scale, p = _probabilities(q[-1, head], k[-1, kv], rows, case["causal"])
    down = grad[-1, head][rows].double()
    value_scores = down @ v[-1, kv].double().t()
    score_grad = p * (value_scores - (value_scores * p).sum(-1, keepdim=True))
    error = relative_error(gradients[0][-1, head][rows], score_grad @ k[-1, kv].double() * scale)
    if case["key"] <= LONGEST_WHOLE_CHECK:
        error = max(error, _whole_head(case, (q, k, v), grad, gradients))
    return error


def _whole_head(case: Case, inputs: Any, grad: Any, found: Any) -> float:
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
