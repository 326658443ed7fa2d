"""Turn a scenario and what is pinned of its plan into the choices along every axis of the search.

A plan takes one choice of each axis. Degrees that do not divide what they split, sizes that no schedule takes and plans
the engine is not known to support are not in the space; `plan.check` is the judge of what can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.table import given_text
from ridgeline.hardware.system import System
from ridgeline.models.spec import Moe
from ridgeline.plan.engine import Dispatch, RecomputePart, Shard
from ridgeline.plan.mesh import Order
from ridgeline.plan.plan import Offload, Plan, Precision, Recompute, Schedule, Switches
from ridgeline.plan.resolve import NEARLY_ALL, separate_norms
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
        made: JsonObject = {}
        for axis, choices in table.items():
            some = tuple(choices) if isinstance(choices, (tuple, list, range, set, frozenset)) else (choices,)
            kind = CHOICES.get(axis, object)
            expectation = f"choices of type {kind.__name__}"
            wrong = [choice for choice in some if not isinstance(choice, kind) or isinstance(choice, bool)]
            problems += [Problem(path=axis, given=given_text(choice), expected=expectation) for choice in wrong]
            made[axis] = some
        if problems:
            raise InputError(problems)
        return cls(**made)

    @property
    def pinned(self) -> tuple[str, ...]:
        """The axes that are not free."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name) is not None)

    def without(self, axis: str) -> Pins:
        """The pins with one axis free."""
        free: JsonObject = {axis: None}
        return replace(self, **free)


PinTable = Mapping[str, object]  # axis -> its choices, as a program may write them
CHOICES: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(("tp", "cp", "pp", "dp", "ep", "etp", "microbatch"), int),
        "schedule": Schedule,
        "shard": str,
        "shard_degree": int,
        "recompute": Recompute,
        "offload": Offload,
        "precision": Precision,
        "switches": Switches,
        "placement": tuple,
        "order": str,
    }
)
NO_PINS = Pins()


def space_of(scenario: Scenario, pins: Pins | PinTable = NO_PINS) -> Space:
    """The space around a scenario: all its engine supports, except where choices are pinned."""
    current = Pins.of(pins)
    axes = {item.name for item in fields(Space)}
    pinned: JsonObject = {axis: getattr(current, axis) for axis in current.pinned if axis in axes}
    return replace(_free(scenario), **pinned)


def _free(scenario: Scenario) -> Space:
    """The space with nothing pinned."""
    plan, system, model = scenario.plan, scenario.system, scenario.model
    able = scenario.engine.supports
    moe = next((block.ffn for block in model.blocks if isinstance(block.ffn, Moe)), None)
    axes: set[str] = set(able.axes)
    powers = powers_of_two(system.chips)
    return Space(
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
        parts = [_of_stages(part, size, len(pins.placement[0])) for part in parts for size in part.pp]
    return tuple(part for part in parts if part.pp and part.schedule and part.shard)


def _of_stages(space: Space, pp: int, stages: int) -> Space:
    """The space with so many ranks in a pipeline and so many virtual stages."""
    return replace(
        space, pp=(pp,), schedule=tuple(schedule for schedule in space.schedule if pp * schedule.chunks == stages)
    )


def _closest(system: System) -> int:
    """Chips of the innermost domain; a torus has no such border."""
    return system.tiers[0].chips if system.tiers else 1


def tensor_degrees(system: System) -> tuple[int, ...]:
    """Tensor ranks that are tried: powers of two as far as the closest links go, and what else divides that domain.

    >>> from ridgeline.hardware.load import system
    >>> tensor_degrees(system("64xh100-sxm")), tensor_degrees(system("2xtpu-v4:12x16x16"))[:8]
    ((1, 2, 4, 8), (1, 2, 3, 4, 6, 8, 12, 16))
    """
    domain = _closest(system)
    sizes = {*powers_of_two(domain), *(size for size in divisors(domain, WIDEST) if system.chips % size == 0)}
    return tuple(sorted(size for size in sizes if size <= min(WIDEST, domain)))


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


def neighbours(choices: tuple[int, ...], own: int) -> tuple[int, ...]:
    """A choice with the next smaller and the next larger one.

    >>> neighbours((1, 2, 4, 8), 4), neighbours((1, 2, 4, 8), 1)
    ((2, 4, 8), (1, 2))
    """
    attempt = tuple(sorted(choices))
    at = attempt.index(own) if own in attempt else 0
    return attempt[max(0, at - 1) : at + 2]


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


def selective_parts(scenario: Scenario) -> tuple[tuple[RecomputePart, ...], ...]:
    """Sets of parts that the engine recomputes together, less what it takes in experts only where there are none.

    Sets with the dense feed-forward part are for models without experts. Norms are recomputed where nearly all stand
    alone: what is priced is the recompute of all. What the plan itself recomputes comes last.
    """
    able, current = scenario.engine.supports, scenario.plan.recompute
    experts = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    away = () if experts else able.selective_in_experts
    if able.norms_in_products and separate_norms(scenario.model) < NEARLY_ALL:
        away = (*away, "norm")
    sets = (
        tuple(part for part in parts if part not in away)
        for parts in able.selective
        if not (experts and "mlp" in parts)
    )
    name_words = (current.parts,) if current.kind == "selective" else ()
    return tuple(dict.fromkeys((*(parts for parts in sets if parts), *name_words)))


def _switches(scenario: Scenario, axes: set[str]) -> Iterable[Switches]:
    """With and without sequence parallelism, keys round a ring or heads exchanged; the rest as the plan has it.

    Where experts are exchanged: by the dispatcher of `best_dispatch`, and also beside compute where the engine can be
    told to.
    """
    base = scenario.plan.switches
    orders = (None, False) if base.sequence_parallel is None and "sp" in axes else (base.sequence_parallel,)
    kinds: tuple[Literal["ring", "all-to-all"], ...] = ("ring", "all-to-all") if "cp" in axes else (base.cp_kind,)
    overlaps = [base.overlap]
    if "ep" in axes and any(isinstance(block.ffn, Moe) for block in scenario.model.blocks):
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


def choices_of(plan: Plan) -> JsonObject:
    """The plan as a choice along every axis of the search."""
    mesh, sharding = plan.mesh, plan.sharding
    total = sharding.shard == "none" or plan.shard_degree == mesh.dp * mesh.cp
    return {
        "tp": mesh.tp,
        "cp": mesh.cp,
        "pp": mesh.pp,
        "ep": mesh.ep,
        "etp": mesh.etp,
        "microbatch": plan.microbatch,
        "schedule": plan.schedule,
        "shard": sharding.shard,
        "shard_degree": 0 if total else plan.shard_degree,
        "recompute": plan.recompute,
        "offload": plan.offload,
        "precision": plan.precision,
        "switches": plan.switches,
    }


def widen_space(space: Space, plans: Sequence[Plan]) -> Space:
    """The space with the choices of these plans among its own."""
    axes: dict[str, tuple[Any, ...]] = {}
    for item in fields(Space):
        catalog_entry = list(getattr(space, item.name))
        for plan in plans:
            choice = choices_of(plan)[item.name]
            if choice not in catalog_entry:
                catalog_entry.append(choice)
        axes[item.name] = tuple(catalog_entry)
    return Space(**axes)
