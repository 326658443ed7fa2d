"""What a software can be asked to do, as a table: decision -> the values that it supports, some only where others hold.

Engines declare theirs in `plan/engines`, targets of an export in `targets/capabilities`, the runtime beside its code. A
search keeps to the table, and a refusal names the row that a plan breaks. One row, in TOML:

    [[limits]]
    when = { cp = [">1"] }                   # where every one of these holds; absent: always
    unless = { tp = [1], ep = [1] }          # and not all of these; absent: always
    shard = ["zero2", "zero3"]               # decision = supported values, what is done by itself first
    shard_degree = ["multiple of cp"]

A cell is a value, "absent", or a relation: ">1", "not none", "=tp", "multiple of cp*ep", "divides replicas", and of
parts "within norm+mlp" and "without activation". The cells of a list are alternatives; an empty list supports nothing.
Names are those of `plan.decisions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.plan.engine import Supports
from ridgeline.plan.mesh import ORDERS
from ridgeline.plan.resolve import (
    PlanSizes,
    Truth,
    in_effect,
    plan_values,
    question_facts,
    serving_effects,
    serving_values,
)
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Serve, Train

Cell: TypeAlias = str | int | float | bool | tuple[str, ...]
Cells: TypeAlias = tuple[Cell, ...]
RELATIONS = ("multiple of ", "divides ", "within ", "without ", "not ", ">", "<", "=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One row: the values of a decision that are supported where the conditions hold.

    expected, todo   what a refusal says; absent where nobody refuses by this row
    """

    decision: str
    values: Cells
    when: Mapping[str, Cells] = field(default_factory=lambda: MappingProxyType({}))
    unless: Mapping[str, Cells] = field(default_factory=lambda: MappingProxyType({}))
    expected: str = ""
    todo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a software supports.

    engines   ids of the engines that its files run; absent: the one engine that declares it
    """

    limits: tuple[Limit, ...] = ()
    engines: tuple[str, ...] = ()

    def unsupported_decisions(self, scenario: Scenario) -> tuple[Limit, ...]:
        """The rows that a scenario's plan breaks."""
        return tuple(limit for limit, broken in self.broken(PlanFacts.of(scenario)) if broken)

    def broken(self, facts: PlanFacts) -> Iterator[tuple[Limit, Truth]]:
        """Every row with where it is broken: of one plan, or by plan."""
        for limit in self.limits:
            effect = facts.effects.get(limit.decision, True)
            if effect is False:
                continue
            where = effect & _hold(limit.when, facts)
            if limit.unless:
                where = where & negate(_hold(limit.unless, facts))
            if where is False:
                continue
            yield limit, where & negate(holds(limit.values, facts.values[limit.decision], facts.values))

    def supported(self, facts: PlanFacts) -> Truth:
        """Whether no row is broken, by plan."""
        fine: Truth = True
        for _, broken in self.broken(facts):
            fine = fine & negate(broken)
        return fine

    def replacements(self, scenario: Scenario) -> JsonObject:
        """Decision -> what is done in its place, for decisions of a plan that are not supported as they are."""
        facts = PlanFacts.of(scenario)
        return {
            limit.decision: _value(limit.values[0], facts.values)
            for limit, broken in self.broken(facts)
            if broken and limit.values
        }


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What rows are held against: values by name, and where decisions have an effect; scalars or columns."""

    values: JsonMapping
    effects: Mapping[str, Truth]

    @classmethod
    def of(cls, scenario: Scenario, sizes: PlanSizes | None = None) -> PlanFacts:
        """The facts of a scenario's own plan, or of plans that differ from it in these sizes."""
        if isinstance(scenario.workload, Serve):
            return cls(serving_values(scenario), serving_effects(scenario))
        some = sizes or PlanSizes.of(scenario)
        return cls(plan_values(scenario, some) | question_facts(scenario, some), in_effect(scenario, some))


def _hold(conditions: Mapping[str, Cells], facts: PlanFacts) -> Truth:
    """Whether all conditions hold."""
    truth: Truth = True
    for name, cells in conditions.items():
        truth = truth & holds(cells, facts.values[name], facts.values)
    return truth


def holds(cells: Cells, value: Any, values: JsonMapping) -> Truth:
    """Whether a value is one of these cells.

    >>> holds((1, "=tp"), 4, {"tp": 4}), holds((">1",), 1, {}), holds(("multiple of tp",), 6, {"tp": 4})
    (True, False, False)
    """
    truth: Truth = False
    for cell in cells:
        truth = truth | _is_cell(cell, value, values)
    return truth


def _is_cell(cell: Cell, value: Any, values: JsonMapping) -> Truth:
    relation = next((word for word in RELATIONS if isinstance(cell, str) and cell.startswith(word)), None)
    if relation is None:
        return value is None if cell == "absent" else _truth(value == cell)
    text = str(cell).removeprefix(relation)
    match relation:
        case "not ":
            return value is not None if text == "absent" else _truth(value != text)
        case "within ":
            return set(value) <= set(text.split("+"))
        case "without ":
            return text not in value
        case ">":
            return _truth(value > number_of(text, values))
        case "<":
            return _truth(value < number_of(text, values))
        case "=":
            return _truth(value == values[text])
        case "multiple of ":
            return _truth(value % number_of(text, values) == 0)
        case _:
            return _truth(number_of(text, values) % value == 0)


def number_of(text: str, values: JsonMapping) -> Any:
    """A product of numbers and decisions, less a number.

    >>> number_of("2*pp-2", {"pp": 4}), number_of("replicas", {"replicas": 8})
    (6, 8)
    """
    product, _, less = text.partition("-")
    number: Any = 1
    for factor in product.split("*"):
        number = number * (int(factor) if factor.isdigit() else values[factor])
    return number - int(less) if less else number


def _truth(value: Any) -> Truth:
    """An answer of one plan as a bool; a column as it is."""
    return value if getattr(value, "shape", ()) else bool(value)


def negate(value: Truth) -> Truth:
    """The opposite, of one or of many."""
    return not value if isinstance(value, bool) else ~value


def _value(cell: Cell, values: JsonMapping) -> object:
    """What a cell means where it names a value: itself, or another decision's."""
    if cell == "absent":
        return None
    return values[cell[1:]] if isinstance(cell, str) and cell.startswith("=") else cell


def read_capability(table: JsonMapping, where: str = "") -> Capability:
    """The capability that a TOML table declares; an `InputError` where a row is no row."""
    limits = [limit for row in table.get("limits", ()) for limit in _rows(row, where)]
    return Capability(limits=tuple(limits), engines=tuple(table.get("engines", ())))


def _rows(row: JsonMapping, where: str) -> Iterator[Limit]:
    when, unless = (
        MappingProxyType({name: _cells(cells, where) for name, cells in row.get(key, {}).items()})
        for key in ("when", "unless")
    )
    for decision, cells in row.items():
        if decision not in ("when", "unless", "expected", "todo"):
            yield Limit(
                decision=decision, values=_cells(cells, where), when=when, unless=unless,
                expected=row.get("expected", ""), todo=row.get("todo", ""),
            )  # fmt: skip


def _cells(cells: object, where: str) -> Cells:
    if not isinstance(cells, list):
        raise InputError(Problem(path="limits", given=repr(cells), expected="a list of values", where=where))
    return tuple(tuple(sorted(cell)) if isinstance(cell, list) else cell for cell in cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedDecision:
    """A decision that a software does not support: its path in a scenario, its value in words, and the reason."""

    path: str
    value: str
    why: str


def decision_words(decisions: Iterable[UnsupportedDecision]) -> str:
    """Decisions with their values, in one line; of a model's parts their names.

    >>> mtp = UnsupportedDecision(path="model.mtp.depth", value="1", why="")
    >>> decision_words([UnsupportedDecision(path="plan.shard", value="zero1", why=""), mtp])
    'plan.shard = zero1, model.mtp'
    """
    parts = (
        ".".join(item.path.split(".")[:2]) if item.path.startswith("model.") else f"{item.path} = {item.value}"
        for item in decisions
    )
    return ", ".join(dict.fromkeys(parts))


def tells_expert_overlap(scenario: Scenario) -> bool:
    """Whether the plan tells its engine to overlap expert dispatch, which it does not do by itself."""
    return bool(scenario.plan.switches.overlap.get("moe")) and "moe" not in scenario.engine.overlaps


def tellable_orders(scenario: Scenario) -> tuple[str, ...]:
    """Rank orders that the engine can be told under this plan; all where stages or replicas are one and none matters.

    Megatron-FSDP, which shards more than optimizer states, goes with the usual order alone.
    """
    plan, features = scenario.plan, scenario.engine.supports.features
    if plan.mesh.pp == 1 or plan.mesh.dp == 1:
        return ORDERS
    return features.order if plan.sharding.shard in ("none", "zero1") else ORDERS[:1]


def unsupported_decisions(scenario: Scenario) -> tuple[str, ...]:
    """Notes on what the plan asks that its engine is not known to do; software moves faster than lists of it."""
    engine = scenario.engine
    if scenario.plan.engine != engine.id or not isinstance(scenario.workload, Train):
        return ()
    facts = PlanFacts.of(scenario)
    facts = replace(facts, values={**facts.values, "asks_expert_overlap": tells_expert_overlap(scenario)})
    broken = (limit for limit, wrong in engine_capability(engine.supports).broken(facts) if wrong)
    words = dict.fromkeys(limit.expected.format(facts.values[limit.decision]) for limit in broken)
    return tuple(f"engine {engine.id} is not known to support {what}" for what in words)


@lru_cache(maxsize=64)
def engine_capability(known: Supports) -> Capability:
    """What an engine declares, as a table whose rows say in words what is not known of it.

    >>> from ridgeline.plan.engine import ENGINES
    >>> [limit.values for limit in engine_capability(ENGINES["deepspeed"].supports).limits if limit.decision == "etp"]
    [(1,)]
    """
    return Capability(limits=tuple(_limits(known)))


def _limits(known: Supports) -> Iterator[Limit]:
    with_stages = {"pp": (">1",)}
    yield from (
        Limit(decision=axis, values=(1,), expected=axis)
        for axis in ("tp", "pp", "cp", "ep", "etp")
        if axis not in known.axes
    )
    yield Limit(decision="schedule.name", values=known.schedules, expected="{}")
    yield Limit(decision="shard", values=("none", *known.shard), expected="{}")
    yield Limit(
        decision="shard", values=("none", *known.pipelined_shard), when={**with_stages, "shard": known.shard},
        expected="{} with stages",
    )  # fmt: skip
    for shards, orders in ((("none", "zero1"), known.features.order), (("zero2", "zero3"), ORDERS[:1])):
        yield Limit(decision="order", values=orders, when={"shard": shards}, expected="rank order {}")
    yield Limit(decision="recompute.kind", values=("none", *known.recompute), expected="{} recompute")
    yield from _recomputed_layers(known)
    yield from _expert_overlap(known)
    if known.experts_split_tokens:
        both = {"tp": (">1",), "ep": (">1",)}
        expected = "experts beside tensor ranks without sequence parallelism"
        yield Limit(decision="sequence_parallel", values=(True,), when=both, expected=expected)
    formats = tuple(dtype(name).id for name in known.precision)
    yield Limit(decision="precision.compute", values=formats, expected="{}")
    for what, words in (("activations", "activations"), ("optimizer", "the optimizer")):
        if what not in known.offload:
            yield Limit(decision=f"offload.{what}", values=(0,), expected=f"offload of {words}")


def _recomputed_layers(known: Supports) -> Iterator[Limit]:
    """Which layers can recompute; full recompute of a number a stage is what most engines can be told."""
    if known.recompute_layers == "any":
        return
    some = {"recomputes_by": ("number",)}
    able = {"recompute.kind": ("full",), "recompute.rest": ("none",)} if known.recompute_layers == "each" else {}
    first = "recompute of the first layers of each stage"
    yield Limit(decision="recomputes_by", values=("all",), when=some, unless=able, expected=first)
    stages = {"recomputes_by": ("stages",)}
    yield Limit(decision="recomputes_by", values=("all",), when=stages, expected="recompute that differs by stage")


def _expert_overlap(known: Supports) -> Iterator[Limit]:
    """Where expert dispatch overlaps compute because the plan asks for it.

    Dispatch of one microbatch hides behind compute of another: with stages that takes a schedule which runs both at a
    time, and a backward that does not begin with all of the forward.
    """
    features, question = known.features, "asks_expert_overlap"
    words = "overlap of expert dispatch in this plan"
    if "moe" not in features.overlaps:
        yield Limit(decision=question, values=(False,), expected=words)
        return
    if features.moe_beside:
        schedules = {"schedule.name": features.moe_beside}
        yield Limit(decision=question, values=(False,), when={"pp": (">1",)}, unless=schedules, expected=words)
    yield Limit(decision=question, values=(False,), when={"recompute.kind": ("full",)}, expected=words)
