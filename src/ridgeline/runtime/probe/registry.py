"""From the name of an op to the function that measures it, and from a failure to its reason in one line."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe import kernels, machine
from ridgeline.runtime.probe.case import KernelCase
from ridgeline.runtime.probe.timing import Bench, Prepared, measure

KERNELS: dict[str, Callable[[KernelCase, Bench], Prepared]] = {
    "gemm": kernels.gemm,
    "grouped_gemm": kernels.grouped_gemm,
    "attention_forward": kernels.attention_forward,
    "attention_decode": kernels.attention_forward,
    "attention_backward": kernels.attention_backward,
    "adamw": kernels.adamw,
    **dict.fromkeys(kernels.FUNCTIONS, kernels.row_op),
}
MEASURES: dict[str, Callable[[KernelCase, Bench], JsonObject]] = {
    **dict.fromkeys(("copy", "read", "write"), machine.traffic),
    **dict.fromkeys(("h2d", "d2h"), machine.host_copy),
    "launch": machine.launch,
    "graph": machine.graph_cost,
    "overlap": machine.overlap,
    "sustained": machine.sustained_rate,
}


EXTRA: list[KernelCase] = []
"""Cases that a plug-in named by `--import` adds; it adds the ops they name to KERNELS or MEASURES."""


def take(case: KernelCase, bench: Bench) -> JsonObject:
    """The results of one case; whatever it raises is its caller's to report."""
    if case.kernel.op in KERNELS:
        return measure(KERNELS[case.kernel.op](case, bench), bench)
    return MEASURES[case.kernel.op](case, bench)


def reason(wrong: BaseException) -> str:
    """What went wrong, in one line of at most 200 characters."""
    lines = [line.strip() for line in str(wrong).splitlines() if line.strip()]
    name = type(wrong).__name__
    text = lines[0] if lines else name
    return (text if name in ("Lacking", "RuntimeError") else f"{name}: {text}")[:200]
