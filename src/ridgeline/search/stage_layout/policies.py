"""Turn a scenario into the memory policies its layers may follow: what is recomputed, what share is offloaded."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.core.records import dataclass
from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.search.space import selective_parts

SHARES = tuple(eighth / 8 for eighth in range(9))  # of activations, that may be offloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """What the layers of a plan save: recompute with its layers left open, and the share of activations offloaded."""

    recompute: Recompute
    offload: float


def recomputes_of(scenario: Scenario) -> tuple[Recompute, ...]:
    """What layers may recompute, the plan's own way first, layers left open; also what the engine has no name for."""
    able, current = scenario.engine.supports, scenario.plan.recompute
    kinds: list[Recompute] = [replace(current, layers=0), Recompute(layers=0)]
    pairs: list[tuple[RecomputeKind, RecomputeKind]] = [("selective", "none"), ("full", "none"), ("full", "selective")]
    usual = (("attention", "activation"),) if current.parts == ("attention",) else ()
    parts = list(dict.fromkeys((current.parts, *usual, *selective_parts(scenario))))
    for kind, remainder in pairs:
        if kind in able.recompute and remainder in ("none", *able.recompute):
            all_plans = parts if "selective" in (kind, remainder) else parts[:1]
            kinds += [Recompute(kind=kind, parts=some, rest=remainder, layers=0) for some in all_plans]
    return tuple(kind for place, kind in enumerate(kinds) if kind not in kinds[:place])


def shares_of(scenario: Scenario) -> tuple[float, ...]:
    """Shares of activations the engine may offload, the plan's own first."""
    current = scenario.plan.offload.activations
    able = "activations" in scenario.engine.supports.offload
    return (current, *(share for share in SHARES if share != current)) if able else (current,)
