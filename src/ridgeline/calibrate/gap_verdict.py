"""Turn a class of time, predicted and measured, into who should change: the model, the machine, or nobody can tell.

A class that is slower than predicted is judged by how near its roof it runs. Where the roof cannot be known, a verdict
says what is missing and how to get it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline import trace
from ridgeline.calibrate.truth.rows import WORDS
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.cost import FORMATS, Profile
from ridgeline.hardware.chip import Chip

MODEL, MACHINE, UNCLEAR, NOTHING = "model", "machine", "unclear", "nothing"
KNOWN_SHARE = 0.5  # of a class's time must be of ops with shapes before their efficiency stands for all of it
SMALL = 0.005  # of the measured step: a part of the gap below is nothing to act on


def reached_by_class(found: trace.Analysis, times_ns: Mapping[str, float]) -> dict[str, trace.ClassRate]:
    """By coarse class: time the roofline allows over time taken, of all ops with recorded shapes.

    times_ns   of a step and chip, by class. Ops that a host computes: a class of which less than half has shapes is
               left out. Kernels with shapes are a sample of others like them, which a graph replays without
    """
    least = 0.0 if found.timeline.is_work.any() else KNOWN_SHARE
    repeats = max(1, len(found.breakdown.steps)) * max(1, len(found.breakdown.chips))
    return {
        class_: rate
        for class_, rate in found.class_rates.items()
        if rate.total_ns / repeats >= least * times_ns.get(class_, 0.0)
    }


def own_bytes(predicted_ns: float, measured_ns: float, share: float) -> dict[str, trace.ClassRate]:
    """Efficiency of the optimizer from the bytes the scenario counts.

    efficiency = sustained share of the memory's rate the model takes * predicted / measured

    >>> own_bytes(8.0, 10.0, 0.75)["optimizer"].efficiency
    0.6
    """
    if not predicted_ns or not measured_ns:
        return {}
    efficiency = min(1.0, share * predicted_ns / measured_ns)
    return {"optimizer": trace.ClassRate.of_memory(efficiency)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRoof:
    """Why nobody can tell how near its roof a class ran, and what would tell."""

    why: str
    todo: str


NO_SHAPES = MissingRoof(
    why="no shapes were recorded, so the roofline cannot tell", todo="record with shapes (record_shapes=True)"
)
NO_FORMULA = MissingRoof(
    why="too few of its ops have shapes and a formula, so the roofline cannot tell",
    todo="look at its spans with `ridgeline analyze`",
)
NO_LINK = MissingRoof(
    why="links have no roofline in a trace, and waiting for other ranks is in it",
    todo="`ridgeline analyze` says who came last to each collective; record all ranks",
)
NO_CPU = MissingRoof(
    why="nothing measured of this CPU says how fast it could be",
    todo="measure it: `ridgeline characterize --device cpu -o cpu.json`, then explain with --profile cpu.json",
)


def missing_roof(class_: str, found: trace.Analysis, unmeasured_host: bool) -> MissingRoof:
    """What is missing where a class has no rate."""
    if class_ == "communication":
        return NO_LINK
    if unmeasured_host:
        return NO_CPU
    return NO_FORMULA if len(found.timeline.detail.shapes) else NO_SHAPES


def measured_host(chip: Chip, profile: Profile) -> Chip:
    """A CPU with the best rates that a profile measured of it: the roof that its ops are held against."""
    best = {ceiling.name: ceiling.measured for ceiling in profile.ceilings()}
    source = f"profile of {profile.title}"

    def quote(rate: float) -> Quoted:
        return Quoted(value=rate, evidence=Evidence.MEASURED, source=source)

    peaks = {name: quote(best[f"product {name}"]) for name in FORMATS if f"product {name}" in best}
    copy_rates = [best[name] for name in ("copy", "read", "write") if name in best]
    hbm = replace(chip.hbm, bandwidth=quote(max(copy_rates))) if copy_rates else chip.hbm
    return replace(chip, peak={**chip.peak, **peaks}, hbm=hbm)


def verdict(
    class_: str, times: tuple[float, float], rate: trace.ClassRate | None, step: float, missing: MissingRoof = NO_SHAPES
) -> tuple[str, str]:
    """Who should change, and why; times are predicted and measured, `missing` says why there is no rate.

        measured faster than predicted          the model: nothing runs faster than it can
        slower, and near the roofline           the model: it promises more than the chip gives
        slower, and far below the roofline      the machine: these kernels can be better
        idle, copies, waiting for other ranks   the machine: the plan does not ask for them
        slower, and its roof is not known       unclear

    Near means what good kernels reach (`OpRate.reachable`): 75 % of the compute roof, less for attention, whose softmax
    counts, and 80 % of the memory roof. The optimizer's shapes are never recorded, but the scenario knows its bytes.

    >>> rate = trace.ClassRate(efficiency=0.5, bound="compute", reachable=0.75)
    >>> verdict("matmul", (10.0, 14.0), rate, 100.0)
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
        return UNCLEAR, missing.why
    speed = f"it runs at {rate.efficiency:.0%} of the {rate.bound} roof"
    if rate.efficiency >= rate.reachable:
        return MODEL, f"{speed}, as good kernels do: the model asks for more"
    return MACHINE, f"{speed}; {rate.reachable:.0%} is within reach"


def action(change: str, word: str, missing: MissingRoof = NO_SHAPES) -> str:
    """What to do about it; nothing where nothing should change."""
    if change == MODEL:
        return "fit the residuals (-o FILE.csv, then `ridgeline fit --with FILE.csv`), or name the engine that ran"
    if change == UNCLEAR:
        return missing.todo
    return WORDS["actions"].get(word, "look at its spans with `ridgeline analyze`") if change == MACHINE else ""
