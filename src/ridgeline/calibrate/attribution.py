"""Turn one part of a gap into who should change, model or machine, and what to do.

    measured faster than predicted          the model: nothing runs faster than it can
    slower, and near the roofline           the model: it promises more than the chip gives
    slower, and far below the roofline      the machine: these kernels can be better
    idle, copies, waiting for other ranks   the machine: the plan does not ask for them
    slower, and no shapes were recorded     unclear

Near means what good kernels reach (`OpRate.reachable`): 75 % of the compute roof, less for attention, whose softmax
counts, and 80 % of the memory roof. The optimizer's shapes are never recorded, but the scenario knows its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.trace.analysis.reachable import ASSUMED
from ridgeline.trace.analyze import Analysis
from ridgeline.trace.time_entries import coarse

MODEL, MACHINE, UNCLEAR, NOTHING = "model", "machine", "unclear", "nothing"
SMALL = 0.005  # of the measured step: a part of the gap below is nothing to act on
ACTIONS = {
    "host": "graphs, compilation or fewer and larger kernels",
    "between kernels": "fewer kernels: fuse, compile",
    "synchronisation": "remove what makes the host wait (.item(), .cpu(), prints)",
    "data loading": "more loader workers, prefetching",
    "start-up": "record after warm-up",
    "memory-bound": "fuse kernels bound by memory: torch.compile, fused norms, activations and losses",
    "matmul": "shapes that fill tiles, another library, lower precision",
    "attention": "another attention kernel (flash, cuDNN), larger heads",
    "optimizer": "a fused optimizer (fused=True); where it is one, fewer bytes: states in 8 or 16 bits, sharded",
    "communication": "overlap it, or check the links",
    "copy": "keep data on the chip; pinned memory and streams for the rest",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How near the roofline a class ran, what bounds most of it, and how near good kernels come."""

    efficiency: float
    bound: str
    reachable: float


def reached(found: Analysis) -> dict[str, Reached]:
    """By coarse class: time the roofline allows over time taken, of all ops with recorded shapes."""
    line = found.timeline
    held: dict[str, list[tuple[float, float, float, str]]] = {}
    for rate in found.rates:
        if rate.roof_ns is not None and rate.bound is not None:
            class_ = coarse(line, line.classes.index(rate.class_))
            roof = min(rate.roof_ns, rate.total_ns)
            held.setdefault(class_, []).append((roof, rate.total_ns, roof / rate.reachable, rate.bound))
    return {class_: _together(parts) for class_, parts in held.items()}


def _together(parts: list[tuple[float, float, float, str]]) -> Reached:
    roof, total, good = (sum(part[place] for part in parts) for place in (0, 1, 2))  # type: ignore[misc]
    spent: dict[str, float] = {}
    for _, time, _, bound in parts:
        spent[bound] = spent.get(bound, 0.0) + time
    return Reached(
        efficiency=roof / total, bound=max(spent, key=lambda one: spent[one]), reachable=roof / good if good else 1.0
    )


def own_bytes(predicted_ns: float, measured_ns: float, share: float) -> dict[str, Reached]:
    """Efficiency of the optimizer from the bytes the scenario counts.

    efficiency = sustained share of the memory's rate the model takes * predicted / measured

    >>> own_bytes(8.0, 10.0, 0.75)["optimizer"].efficiency
    0.6
    """
    if not predicted_ns or not measured_ns:
        return {}
    efficiency = min(1.0, share * predicted_ns / measured_ns)
    return {"optimizer": Reached(efficiency=efficiency, bound="memory", reachable=ASSUMED["memory"])}


def verdict(class_: str, times: tuple[float, float], rate: Reached | None, step: float) -> tuple[str, str]:
    """Who should change, and why; times are predicted and measured.

    >>> verdict("matmul", (10.0, 14.0), Reached(efficiency=0.5, bound="compute", reachable=0.75), 100.0)
    ('machine', 'it runs at 50% of the compute roof; 75% is within reach')
    """
    gap = times[1] - times[0]
    if abs(gap) < SMALL * step:
        return NOTHING, "less than 0.5% of the step"
    if class_.startswith("idle") or class_ in ("copy", "per-kernel"):
        if gap < 0:
            return MODEL, "less of it than the model adds"
        return MACHINE, "time in which the plan asks for nothing"
    if class_ == "waiting":
        return MODEL, "the model adds waiting this run did not have" if gap < 0 else "waiting the model does not know"
    if gap < 0:
        return MODEL, "it ran faster than the model believes it can"
    if rate is None:
        return UNCLEAR, "no shapes were recorded, so the roofline cannot tell"
    if rate.efficiency >= rate.reachable:
        return (
            MODEL,
            f"it runs at {rate.efficiency:.0%} of the {rate.bound} roof, as good kernels do: the model asks for more",
        )
    return MACHINE, f"it runs at {rate.efficiency:.0%} of the {rate.bound} roof; {rate.reachable:.0%} is within reach"


def action(change: str, word: str) -> str:
    """What to do about it; nothing where nothing should change."""
    if change == MODEL:
        return "fit the residuals (-o FILE.csv, then `ridgeline fit --with FILE.csv`), or name the engine that ran"
    if change == UNCLEAR:
        return "record with shapes (record_shapes=True)"
    return ACTIONS.get(word, "look at its spans with `ridgeline analyze`") if change == MACHINE else ""
