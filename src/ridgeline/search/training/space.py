"""Turn a scenario and what is pinned of its plan into the choices along every axis of the search.

A plan takes one choice of each axis. Degrees that do not divide what they split, sizes that no schedule takes and plans
the engine is not known to support are not in the space; `plan.check` is the judge of what can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Literal

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.table import given_text
from ridgeline.models.spec import Moe
from ridgeline.plan.engine import Dispatch, Shard
from ridgeline.plan.mesh import Order
from ridgeline.plan.plan import Offload, Plan, Precision, Recompute, Schedule, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.search.choices import (
    distinct_choices,
    divisors,
    has_experts,
    powers_of_two,
    selective_parts,
    tensor_degrees,
)

DEGREES = ("tp", "cp", "pp", "ep", "etp")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The choices that are left along the axes a user constrains; None: the axis is free.

    dp          follows from the chips that the other degrees leave; pinned, only plans of that dp are left
    placement   layers of each virtual stage, one choice
    order       rank orders; the space is priced in the first, its best plans in all
    """

    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    microbatch: tuple[int, ...] | None = None
    schedule: tuple[Schedule, ...] | None = None
    shard: tuple[Shard, ...] | None = None
    shard_degree: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None
    offload: tuple[Offload, ...] | None = None
    precision: tuple[Precision, ...] | None = None
    switches: tuple[Switches, ...] | None = None
    placement: tuple[tuple[int, ...], ...] | None = None
    order: tuple[Order, ...] | None = None

    @classmethod
    def of(cls, table: Pins | PinTable) -> Pins:
        """Pins as they are, or of a table {axis: choices}; one choice may stand alone.

        >>> Pins.of({"tp": (4, 8), "shard": "zero1"}).pinned
        ('tp', 'shard')
        """
        if isinstance(table, Pins):
            return table
        problems = [not_among(axis, axis, CHOICES, "remove it") for axis in table if axis not in CHOICES]
        pinned: JsonObject = {}
        for axis, choices in table.items():
            listed = tuple(choices) if isinstance(choices, (tuple, list, range, set, frozenset)) else (choices,)
            kind = CHOICES.get(axis, object)
            expectation = f"choices of type {kind.__name__}"
            wrong = [item for item in listed if not isinstance(item, kind) or isinstance(item, bool)]
            problems += [Problem(path=axis, given=given_text(item), expected=expectation) for item in wrong]
            pinned[axis] = listed
        if problems:
            raise InputError(problems)
        return cls(**pinned)

    @property
    def pinned(self) -> tuple[str, ...]:
        """The axes that are not free."""
        return tuple(axis for axis in self.__slots__ if getattr(self, axis) is not None)

    def without(self, axis: str) -> Pins:
        """The pins with one axis free."""
        free: JsonObject = {axis: None}
        return replace(self, **free)


PinTable = Mapping[str, object]  # axis -> its choices, as a program may write them
CHOICES: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys((*DEGREES, "dp", "microbatch", "shard_degree"), int),
        **dict.fromkeys(("shard", "order"), str),
        "schedule": Schedule,
        "recompute": Recompute,
        "offload": Offload,
        "precision": Precision,
        "switches": Switches,
        "placement": tuple,
    }
)
NO_PINS = Pins()


def space_of(scenario: Scenario, pins: Pins | PinTable = NO_PINS) -> Space:
    """The space around a scenario: all its engine supports, except where choices are pinned."""
    plan, system, model = scenario.plan, scenario.system, scenario.model
    able, current = scenario.engine.supports, Pins.of(pins)
    moe = next((block.ffn for block in model.blocks if isinstance(block.ffn, Moe)), None)
    axes: set[str] = set(able.axes)
    powers = powers_of_two(system.chips)
    space = Space(
        tp=tensor_degrees(system) if "tp" in axes else (1,),
        cp=tuple(size for size in powers if size <= max(1, scenario.workload.seq // 2048)) if "cp" in axes else (1,),
        pp=tuple(divisors(system.chips, model.layers + 2)) if "pp" in axes else (1,),
        ep=tuple(divisors(moe.experts, system.chips)) if moe and "ep" in axes else (1,),
        etp=(1, 2, 4, 8) if moe and "etp" in axes else (1,),
        microbatch=tuple(powers_of_two(LARGEST_MICROBATCH)),
        schedule=tuple(_schedules(able.schedules)),
        shard=tuple(able.shard),
        shard_degree=(0,),
        recompute=tuple(_recomputes(scenario)),
        offload=(Offload(),),
        precision=(plan.precision,),
        switches=tuple(_switches(scenario, axes)),
    )
    pinned: JsonObject = {axis: getattr(current, axis) for axis in current.pinned if axis in Space.__slots__}
    return replace(space, **pinned)


def parts_of(scenario: Scenario, space: Space, pins: Pins = NO_PINS) -> tuple[Space, ...]:
    """The space without stages and the space with them, each as the engine runs it.

    Under a pipeline a schedule or a sharding that the engine is not known to run is left out unless it is pinned. 1f1b
    is always in the space, because it is also how a plan without stages runs.
    """
    able = scenario.engine.supports
    schedules = tuple(
        schedule for schedule in space.schedule if pins.schedule is not None or schedule.name in able.schedules
    )
    shards = tuple(item for item in space.shard if pins.shard is not None or item in able.pipelined_shard)
    flat, staged = (tuple(size for size in space.pp if (size > 1) == many) for many in (False, True))
    parts = [replace(space, pp=flat), replace(space, pp=staged, schedule=schedules, shard=shards)]
    if pins.placement is not None:
        stages = len(pins.placement[0])
        parts = [
            replace(part, pp=(size,), schedule=tuple(item for item in part.schedule if size * item.chunks == stages))
            for part in parts
            for size in part.pp
        ]
    return tuple(part for part in parts if part.pp and part.schedule and part.shard)


def _schedules(known: Iterable[str]) -> Iterable[Schedule]:
    """Every schedule at every number of chunks it takes; 1f1b first, which is also how it runs without a pipeline."""
    yield Schedule()
    for name in known:
        kind = SCHEDULES[name]
        maximum = kind.most_chunks or MOST_CHUNKS
        for chunks in range(kind.fewest_chunks, maximum + 1):
            if (name, chunks) != ("1f1b", 1):
                yield Schedule(name=name, chunks=chunks)


def _recomputes(scenario: Scenario) -> Iterable[Recompute]:
    """Nothing, the parts that the engine recomputes together and those the plan names, everything."""
    kinds = scenario.engine.supports.recompute
    if "none" in kinds:
        yield Recompute()
    if "selective" in kinds:
        yield from (Recompute(kind="selective", parts=parts) for parts in selective_parts(scenario))
    if "full" in kinds:
        yield Recompute(kind="full")


def _switches(scenario: Scenario, axes: set[str]) -> Iterable[Switches]:
    """With and without sequence parallelism, keys round a ring or heads exchanged; the rest as the plan has it.

    Where experts are exchanged: by the dispatcher of `best_dispatch`, and also beside compute where the engine can be
    told to.
    """
    base = scenario.plan.switches
    orders = (None, False) if base.sequence_parallel is None and "sp" in axes else (base.sequence_parallel,)
    if "ep" in axes and has_experts(scenario) and scenario.engine.supports.experts_split_tokens:
        orders = orders[:1]  # the software refuses experts beside tensor ranks whose tokens are whole
    kinds: tuple[Literal["ring", "all-to-all"], ...] = ("ring", "all-to-all") if "cp" in axes else (base.cp_kind,)
    overlaps = [base.overlap]
    if "ep" in axes and has_experts(scenario):
        base = replace(base, moe_dispatch=base.moe_dispatch or best_dispatch(scenario))
        words = "moe" in scenario.engine.supports.features.overlaps and "moe" not in base.overlap
        overlaps += [MappingProxyType({**base.overlap, "moe": True})] if words else []
    for overlap, order, kind in product(overlaps, orders, kinds):
        yield replace(base, sequence_parallel=order, cp_kind=kind, overlap=overlap)


def best_dispatch(scenario: Scenario) -> Dispatch | None:
    """The expert dispatcher that a search takes where the plan leaves it open; None: the engine's plain all-to-all.

    DeepEP and HybridEP send a token once to a domain however many of its experts are there, so they are never priced
    slower. They are kernels for NVIDIA's chips; HybridEP is what recipes for Blackwell name.
    """
    chip, catalog_entry = scenario.system.chip, scenario.engine.supports.features.moe_dispatch
    order: tuple[Dispatch, ...] = ("hybridep", "deepep") if chip.family == "blackwell" else ("deepep", "hybridep")
    return next((item for item in order if item in catalog_entry), None) if chip.vendor == "NVIDIA" else None


def choice(plan: Plan, axis: str) -> object:
    """What a plan has chosen along an axis; of a shard degree 0 for all data-parallel ranks."""
    mesh, sharding = plan.mesh, plan.sharding
    if axis in DEGREES:
        return getattr(mesh, axis)
    if axis == "shard_degree":
        total = sharding.shard == "none" or plan.shard_degree == mesh.dp * mesh.cp
        return 0 if total else plan.shard_degree
    return sharding.shard if axis == "shard" else getattr(plan, axis)


def widen_space(space: Space, plans: Sequence[Plan]) -> Space:
    """The space with the choices of these plans among its own."""
    axes: JsonObject = {
        axis: tuple(distinct_choices([*getattr(space, axis), *(choice(plan, axis) for plan in plans)]))
        for axis in Space.__slots__
    }
    return Space(**axes)
