"""Matrix products: torch's own per layout, scaled fp8, int8, and grouped ones for experts.

gemm            y[m, n] = x[m, k] w[n, k]^T, the forward of a linear layer (TN to BLAS)
  impl torch    that;  torch_nn  y = x[m, k] w[k, n], its input gradient;  torch_nt  y = x[k, m]^T w[k, n], its
                weight gradient;  scaled_mm  fp8 with one scale a tensor;  int_mm  int8 into int32
grouped_gemm    the same, `groups` times with m rows each: grouped_mm in one kernel, or a loop of products
"""

from __future__ import annotations

from typing import Any

import torch

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

SAMPLED_ROWS, SAMPLED_COLUMNS = 16, 64


def gemm(case: Case, bench: Bench) -> Prepared:
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
        check=lambda: _check(*first),
        tolerance=tolerance_of(case.kernel.dtype),
    )


def _plain_set(case: Case, bench: Bench) -> tuple[Any, Any, Any, Any]:
    """Call, output, and the two factors as [m, k] and [k, n]."""
    m, n, k, dtype = case["m"], case["n"], case["k"], DTYPES[case.kernel.dtype]
    x = random(bench, *((k, m) if case.kernel.impl == "torch_nt" else (m, k)), dtype=dtype)
    w = random(bench, *((n, k) if case.kernel.impl == "torch" else (k, n)), dtype=dtype)
    left_operand = x.t() if case.kernel.impl == "torch_nt" else x
    right = w.t() if case.kernel.impl == "torch" else w
    out = torch.full((m, n), float("nan"), device=bench.backend.name, dtype=dtype)
    return (lambda: torch.mm(left_operand, right, out=out)), out, left_operand, right


def _scaled_set(case: Case, bench: Bench) -> tuple[Any, Any, Any, Any]:
    if DTYPES["fp8"] is None or not hasattr(torch, "_scaled_mm"):
        raise Lacking(f"torch {torch.__version__} has no scaled product of fp8")
    m, n, k = case["m"], case["n"], case["k"]
    x, w = (random(bench, *shape, dtype=DTYPES["fp8"]) for shape in ((m, k), (n, k)))
    unit_scale = torch.ones((), device=bench.backend.name)
    out = torch.full((m, n), float("nan"), device=bench.backend.name, dtype=torch.bfloat16)

    def call() -> Any:
        return torch._scaled_mm(
            x, w.t(), unit_scale, unit_scale, out_dtype=torch.bfloat16, use_fast_accum=True, out=out
        )

    return call, out, x, w.t()


def _int_set(case: Case, bench: Bench) -> tuple[Any, Any, Any, Any]:
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"device": bench.backend.name, "dtype": torch.int8}
    x, w = torch.randint(-127, 128, (m, k), **draw), torch.randint(-127, 128, (n, k), **draw)
    out = torch.zeros((m, n), device=bench.backend.name, dtype=torch.int32)
    return (lambda: torch._int_mm(x, w.t(), out=out)), out, x, w.t()


def _check(call: Any, out: Any, left: Any, right: Any) -> float:
    """Error of sampled rows and columns against fp64; every element must have been written."""
    call()
    if out.is_floating_point() and not bool(torch.isfinite(out).all()):
        return float("inf")
    rows, columns = some(out.shape[0], SAMPLED_ROWS).to(out.device), some(out.shape[1], SAMPLED_COLUMNS).to(out.device)
    return relative_error(
        out[rows][:, columns], _wide(_pick_rows(left, rows)) @ _wide(_pick_rows(right.t(), columns)).t()
    )


def _pick_rows(values: Any, rows: Any) -> Any:
    """Some rows; formats of one byte go by way of bytes, which every backend can index."""
    return values.view(torch.uint8)[rows].view(values.dtype) if values.dtype.itemsize == 1 else values[rows]


def _wide(values: Any) -> Any:
    """Values as fp64, by way of fp32 where a format converts no other way; on devices without fp64 they stay fp32."""
    wide = values.float() if values.dtype.itemsize < 4 else values
    try:
        return wide.double()
    except (TypeError, RuntimeError):
        return wide


def grouped_gemm(case: Case, bench: Bench) -> Prepared:
    """Products of equal size side by side, one for every expert a rank holds."""
    groups, m, n, k = case["groups"], case["m"], case["n"], case["k"]
    dtype = DTYPES[case.kernel.dtype]
    if case.kernel.impl == "grouped_mm" and not hasattr(torch, "_grouped_mm"):
        raise Lacking(f"torch {torch.__version__} has no _grouped_mm")

    def one_set() -> tuple[Any, Any, Any]:
        x = random(bench, groups * m, k, dtype=dtype)
        w = random(bench, groups, n, k, dtype=dtype)
        if case.kernel.impl == "grouped_mm":
            ends = torch.arange(1, groups + 1, device=bench.backend.name, dtype=torch.int32) * m
            return (lambda: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)), x, w
        out = torch.empty(groups * m, n, device=bench.backend.name, dtype=dtype)

        def loop() -> Any:
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
