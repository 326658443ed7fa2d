"""Turn a scenario and what is pinned of its plan into the choices along every axis of the search.

A plan takes one choice of each axis. Degrees that do not divide what they split, sizes that no schedule takes and plans
the engine is not known to support are not in the space; `plan.check` is the judge of what can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, Literal

from ridgeline.core.dtype import dtype
from ridgeline.hardware.system import System
from ridgeline.models.spec import Moe
from ridgeline.plan.engine import ENGINES, RecomputePart, Shard
from ridgeline.plan.plan import Offload, Plan, Precision, Recompute, Schedule, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES

WIDEST = 64  # tensor ranks nobody goes beyond
LARGEST_MICROBATCH = 16  # sequences of a microbatch
MOST_CHUNKS = 8  # virtual stages of a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Choices along each axis; dp follows from the chips that the others leave.

    shard_degree   0: all data-parallel ranks; otherwise so many
    """

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    pp: tuple[int, ...]
    ep: tuple[int, ...]
    etp: tuple[int, ...]
    microbatch: tuple[int, ...]
    schedule: tuple[Schedule, ...]
    shard: tuple[Shard, ...]
    shard_degree: tuple[int, ...]
    recompute: tuple[Recompute, ...]
    offload: tuple[Offload, ...]
    precision: tuple[Precision, ...]
    switches: tuple[Switches, ...]

    @property
    def structures(self) -> tuple[tuple[Recompute, Precision, Switches], ...]:
        """What decides which ops there are: a program each."""
        return tuple(product(self.recompute, self.precision, self.switches))

    @property
    def corners(self) -> int:
        """Combinations of choices, whether they can run or not."""
        sizes = (len(getattr(self, name)) for name in self.__slots__)
        return prod(sizes)


Pins = Mapping[str, tuple[Any, ...]]  # axis -> the choices that are left of it
NO_PINS: Pins = MappingProxyType({})


def space_of(scenario: Scenario, pins: Pins = NO_PINS) -> Space:
    """The space around a scenario: all its engine supports, except where choices are pinned."""
    plan, system, model = scenario.plan, scenario.system, scenario.model
    engine = ENGINES[plan.engine]
    able = engine.supports
    moe = next((block.ffn for block in model.blocks if isinstance(block.ffn, Moe)), None)
    axes: set[str] = set(able.axes)
    powers = powers_of_two(system.chips)
    found: dict[str, tuple[Any, ...]] = {
        "tp": tuple(size for size in powers if size <= min(WIDEST, _closest(system))) if "tp" in axes else (1,),
        "cp": tuple(size for size in powers if size <= max(1, scenario.workload.seq // 2048)) if "cp" in axes else (1,),
        "pp": tuple(divisors(system.chips, model.layers + 2)) if "pp" in axes else (1,),
        "ep": tuple(divisors(moe.experts, system.chips)) if moe and "ep" in axes else (1,),
        "etp": tuple(size for size in (1, 2, 4, 8) if "etp" in axes) if moe and "etp" in axes else (1,),
        "microbatch": tuple(size for size in powers_of_two(LARGEST_MICROBATCH)),
        "schedule": tuple(_schedules(able.schedules)),
        "shard": tuple(able.shard),
        "shard_degree": (0,),
        "recompute": tuple(_recomputes(scenario)),
        "offload": (Offload(),),
        "precision": (plan.precision,),
        "switches": tuple(_switches(plan, axes)),
    }
    return Space(**{axis: tuple(pins.get(axis, choices)) for axis, choices in found.items()})


def parts_of(scenario: Scenario, space: Space, pins: Pins = NO_PINS) -> tuple[Space, ...]:
    """The space without stages and the space with them, each as the engine runs it.

    Under a pipeline a schedule or a sharding that the engine is not known to run is left out unless it is pinned. 1f1b
    is always in the space, because it is also how a plan without stages runs.
    """
    able = ENGINES[scenario.plan.engine].supports
    schedules = tuple(one for one in space.schedule if "schedule" in pins or one.name in able.schedules)
    shards = tuple(one for one in space.shard if "shard" in pins or one in able.pipelined_shard)
    flat, staged = (tuple(size for size in space.pp if (size > 1) == many) for many in (False, True))
    parts = [replace(space, pp=flat), replace(space, pp=staged, schedule=schedules, shard=shards)]
    if "placement" in pins:
        parts = [_of_stages(part, size, len(pins["placement"][0])) for part in parts for size in part.pp]
    return tuple(part for part in parts if part.pp and part.schedule and part.shard)


def _of_stages(space: Space, pp: int, stages: int) -> Space:
    """The space with so many ranks in a pipeline and so many virtual stages."""
    return replace(space, pp=(pp,), schedule=tuple(one for one in space.schedule if pp * one.chunks == stages))


def _closest(system: System) -> int:
    """Chips of the innermost domain; a torus has no such border."""
    return system.tiers[0].chips if system.tiers else 1


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4 … up to `most`.

    >>> powers_of_two(12)
    [1, 2, 4, 8]
    """
    return [1 << place for place in range(max(1, most).bit_length())]


def divisors(number: int, most: int) -> list[int]:
    """Divisors of a number up to `most`.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def _schedules(known: Iterable[str]) -> Iterable[Schedule]:
    """Every schedule at every number of chunks it takes; 1f1b first, which is also how it runs without a pipeline."""
    yield Schedule()
    for name in known:
        kind = SCHEDULES[name]
        most = kind.most_chunks or MOST_CHUNKS
        for chunks in range(kind.fewest_chunks, most + 1):
            if (name, chunks) != ("1f1b", 1):
                yield Schedule(name=name, chunks=chunks)


def _recomputes(scenario: Scenario) -> Iterable[Recompute]:
    """Nothing, the parts that the engine recomputes together and those the plan names, everything."""
    kinds = scenario.engine.supports.recompute
    yield Recompute()
    if "selective" in kinds:
        yield from (Recompute(kind="selective", parts=parts) for parts in selective_parts(scenario))
    if "full" in kinds:
        yield Recompute(kind="full")


def selective_parts(scenario: Scenario) -> tuple[tuple[RecomputePart, ...], ...]:
    """Sets of parts that the engine recomputes together, less what it takes in experts only where there are none.

    Sets with the dense feed-forward part are for models without experts. What the plan itself recomputes comes last.
    """
    able, own = scenario.engine.supports, scenario.plan.recompute
    experts = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    sets = (
        tuple(part for part in parts if experts or part not in able.selective_in_experts)
        for parts in able.selective
        if not (experts and "mlp" in parts)
    )
    named = (own.parts,) if own.kind == "selective" else ()
    return tuple(dict.fromkeys((*(parts for parts in sets if parts), *named)))


def _switches(plan: Plan, axes: set[str]) -> Iterable[Switches]:
    """With and without sequence parallelism, keys round a ring or heads exchanged; the rest as the plan has it."""
    base = plan.switches
    orders = (None, False) if base.sequence_parallel is None and "sp" in axes else (base.sequence_parallel,)
    kinds: tuple[Literal["ring", "all-to-all"], ...] = ("ring", "all-to-all") if "cp" in axes else (base.cp_kind,)
    for order, kind in product(orders, kinds):
        yield replace(base, sequence_parallel=order, cp_kind=kind)


def narrow(precision: Precision, name: str) -> Precision:
    """The precision with products in another format."""
    return replace(precision, compute=dtype(name))
