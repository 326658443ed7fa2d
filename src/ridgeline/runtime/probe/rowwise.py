"""Memory-bound ops over rows x columns, eager and compiled, and the optimizer's step.

rmsnorm, layernorm, softmax   one tensor in, one out        swiglu   silu(gate) * up, columns = the result's
add_rmsnorm   residual + x, and its norm: two in, two out   rope     half-split rotation, heads of 128 columns
cross_entropy mean loss of rows tokens over columns words   embedding  rows tokens of columns from a 32768-word table
add           x + y                                         adamw    one step over `parameters`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.kernel import (
    DTYPES,
    Bench,
    Lacking,
    Prepared,
    random,
    relative_error,
    sets_for,
    some,
    tolerance_of,
)

Function = Callable[..., Any]
HEAD_DIM = 128  # of the rope case
WORDS = 32768  # rows of the embedding table
EPS = 1e-6
PARAMETER_TENSORS = 8


def rmsnorm(x: Any, weight: Any) -> Any:
    return functional.rms_norm(x, weight.shape, weight, EPS)


def layernorm(x: Any, weight: Any) -> Any:
    return functional.layer_norm(x, weight.shape, weight, weight, EPS)


def add_rmsnorm(x: Any, residual: Any, weight: Any) -> Any:
    total = x + residual
    return functional.rms_norm(total, weight.shape, weight, EPS), total


def swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def rope(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def softmax(x: Any) -> Any:
    return x.softmax(-1)


def cross_entropy(x: Any, target: Any) -> Any:
    return functional.cross_entropy(x.float(), target)


def add(x: Any, y: Any) -> Any:
    return x + y


def embedding(table: Any, tokens: Any) -> Any:
    return functional.embedding(tokens, table)


FUNCTIONS: dict[str, Function] = {
    "rmsnorm": rmsnorm,
    "layernorm": layernorm,
    "add_rmsnorm": add_rmsnorm,
    "swiglu": swiglu,
    "rope": rope,
    "softmax": softmax,
    "cross_entropy": cross_entropy,
    "embedding": embedding,
    "add": add,
}


def row_op(case: Case, bench: Bench) -> Prepared:
    """A row op ready to run."""
    function = FUNCTIONS[case.kernel.op]
    if case.kernel.impl == "compiled":
        torch._dynamo.reset()
        run: Function = torch.compile(function, dynamic=False)
    else:
        run = function
    sets = [_inputs(case, bench) for _ in range(sets_for(bench, case.kernel.bytes))]

    def bind(inputs: Sequence[Any]) -> Callable[[], Any]:
        return lambda: run(*inputs)

    return Prepared(
        calls=[bind(inputs) for inputs in sets],
        set_bytes=case.kernel.bytes,
        check=lambda: _check(case, run(*sets[0]), sets[0]),
        tolerance=tolerance_of(case.kernel.dtype),
    )


def _inputs(case: Case, bench: Bench) -> list[Any]:
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


def _check(case: Case, found: Any, inputs: Sequence[Any]) -> float:
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


def adamw(case: Case, bench: Bench) -> Prepared:
    """One step of AdamW over tensors that sum to `parameters`; states have the format of the parameters."""
    size, dtype = case["parameters"] // PARAMETER_TENSORS, DTYPES[case.kernel.dtype]
    parameters = [random(bench, size, dtype=dtype, scale=0.02).requires_grad_() for _ in range(PARAMETER_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    is_fused = case.kernel.impl == "fused"
    settings: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
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
