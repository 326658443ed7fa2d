"""Turn what a user writes about the plan into Pins: for each axis of the search the choices that are left.

tp = 8                              pinned
tp = [4, 8]      "4,8"              one of these
tp = "2..8"                         bounded: what the search would try in that range, and powers of two
schedule = "interleaved"            a name stands for all choices of that name; a table for exactly one
schedule.chunks = "2..4"            a key below keeps the choices that agree with it
recompute.parts = "norm+mlp"        parts that are recomputed together
order = "tp-cp-ep-pp-dp"            rank order on the topology; of several the best plans are tried in each
placement = [20, 21, 21, 18]        layers of each virtual stage: one placement, so pp x chunks is as many
overlap.tp = [true, false]          switches are pinned by their own keys

The same keys, values and messages as under [plan] of a scenario file, except that a list means "one of".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode_into, keys
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.plan import Offload, Plan, Precision, Recompute, Schedule, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import SHORT, parents_first, parse_value
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.search.choices import MOST_CHOICES, distinct_choices, listed_values, range_bounds, sizes_within
from ridgeline.search.training.space import MOST_CHUNKS, NO_PINS, Pins, Space, space_of

COUNTS = ("tp", "cp", "pp", "dp", "ep", "etp", "microbatch", "shard_degree")
SWITCHES = tuple(item.name for item in fields(Switches))
TABLES = ("schedule", "recompute", "offload", "precision")  # axes whose choices are tables themselves
KEYS = tuple(keys(Plan))
TableChoice = Schedule | Recompute | Offload | Precision
Choices = Sequence[object]  # along one axis, of the type that `Pins` has for it


@dataclass(frozen=True, slots=True, kw_only=True)
class PinSettings:
    """Pins as they are written, before a model and a system are known: key of [plan] -> the values given for it.

    A key below a table is dotted: `schedule.chunks`. `source` says where a key was written.
    """

    values: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: MappingProxyType({}))
    source: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines to search, each a space of its own; empty: as the scenario says."""
        return tuple(dict.fromkeys(ENGINES[str(id)].id for id in self.values.get("engine", ())))


def pin_settings(
    table: Mapping[str, object], source: str = "--set", problems: list[Problem] | None = None
) -> PinSettings:
    """The values of a [space] table, or of `plan.` settings as a table; problems are appended to the caller's list.

    >>> dict(pin_settings({"tp": "4,8", "schedule": {"chunks": 2}}).values)
    {'tp': (4, 8), 'schedule.chunks': (2,)}
    """
    pins: dict[str, tuple[object, ...]] = {}
    problems = [] if problems is None else problems
    for key, value in table.items():
        if key not in KEYS:
            problems.append(replace(not_among(f"plan.{key}", str(key), KEYS, "remove it"), where=source))
        elif isinstance(value, Mapping) and key in (*TABLES, "overlap") and not _is_complete_choice(key, value):
            pins |= {f"{key}.{part}": listed_values(inner) for part, inner in value.items()}
        else:
            pins[key] = (value,) if key == "placement" else listed_values(value)
    for key, values in pins.items():
        if not 1 <= len(values) <= MOST_CHOICES:
            given_text, expectation = f"{len(values)} choices", f"1 to {MOST_CHOICES} choices"
            problems.append(Problem(path=f"plan.{key}", given=given_text, expected=expectation, where=source))
    unknown = [id for id in pins.get("engine", ()) if not isinstance(id, str) or id not in ENGINES]
    problems += [replace(not_among("plan.engine", str(id), ENGINES), where=source) for id in unknown]
    return PinSettings(values=MappingProxyType(pins), source=MappingProxyType(dict.fromkeys(pins, source)))


def settings_table(settings: Iterable[str], problems: list[Problem]) -> tuple[dict[str, object], list[str]]:
    """`plan.` settings as a table of pins, and the settings that are not about the plan."""
    table: dict[str, object] = {}
    remainder: list[str] = []
    for setting in parents_first(settings):
        path, equals, text = setting.partition("=")
        parts = [part.strip() for part in path.split(".")]
        if parts[0] != "plan" or not equals:
            remainder.append(setting)
            continue
        if not 2 <= len(parts) <= 3 or not all(parts):
            expectation, todo = "plan.key=value or plan.key.part=value", "for example plan.tp=8"
            problems.append(Problem(path="--set", given=repr(setting), expected=expectation, todo=todo))
        elif len(parts) == 2:
            table[parts[1]] = parse_value(text)
        else:
            below = table.get(parts[1])
            short = SHORT.get(f"plan.{parts[1]}")
            below = {short: below} if short and isinstance(below, str) else below
            table[parts[1]] = {**(below if isinstance(below, Mapping) else {}), parts[2]: parse_value(text)}
    return table, remainder


def join_pins(first: PinSettings, second: PinSettings) -> PinSettings:
    """Both; the second wins, and replaces everything said below a key it gives."""
    heads = {key.split(".")[0] for key in second.values if "." not in key}
    first_values = {key: values for key, values in first.values.items() if key.split(".")[0] not in heads}
    return PinSettings(
        values=MappingProxyType({**first_values, **second.values}),
        source=MappingProxyType({**first.source, **second.source}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One key being read: its values, the choices left so far, and where problems are told.

    part   the key below `key` in a table, or nothing
    """

    key: str
    part: str
    values: tuple[object, ...]
    scenario: Scenario
    space: Space
    pins: Pins
    problems: list[Problem]

    def left(self, axis: str) -> tuple[Any, ...]:
        """The choices of an axis that earlier keys left."""
        pin_values: tuple[Any, ...] | None = getattr(self.pins, axis)
        return getattr(self.space, axis) if pin_values is None else pin_values

    def decoded(self, value: object) -> Plan:
        """A plan with this one key, decoded as a scenario file's; the default plan where that cannot be."""
        return decode_into(Plan, {self.key: value}, "plan", self.problems) or Plan()

    def plan_value(self, value: object) -> Any:
        """A degree, a size or a word, decoded."""
        plan, key = self.decoded(value), self.key
        owner = plan if key == "microbatch" else plan.sharding if key in ("shard", "shard_degree") else plan.mesh
        return getattr(owner, key)

    def refuse(self, given: str, expected: str, todo: str = "") -> None:
        """A problem of this key."""
        path = ".".join(filter(None, ("plan", self.key, self.part)))
        self.problems.append(Problem(path=path, given=given, expected=expected, todo=todo))


def pins_of(settings: PinSettings, scenario: Scenario, problems: list[Problem]) -> Pins:
    """The pins of a scenario's search; wrong values become problems as a scenario file would report them.

    >>> from ridgeline.plan.scenario_file import assemble
    >>> base, _ = assemble({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 8}})
    >>> pins = pins_of(pin_settings({"tp": "2..4", "shard": ["zero1"]}), base, [])
    >>> pins.pinned, pins.tp, pins.shard
    (('tp', 'shard'), (2, 4), ('zero1',))
    """
    space, pins = space_of(scenario), NO_PINS
    for name, values in settings.values.items():
        key, _, part = name.partition(".")
        if key not in PARSERS:
            continue
        axis, parse = PARSERS[key]
        axis_problems: list[Problem] = []
        setting = _Setting(
            key=key, part=part, values=values, scenario=scenario, space=space, pins=pins, problems=axis_problems
        )
        axis_choices: JsonObject = {axis: tuple(parse(setting))}
        pins = replace(pins, **axis_choices)
        problems += [replace(problem, where=settings.source.get(name, "")) for problem in axis_problems]
    return pins


def _is_complete_choice(key: str, value: Mapping[str, object]) -> bool:
    """Whether a table says enough to be one choice: a schedule with name and chunks, a recompute with its kind."""
    least = {"schedule": {"name", "chunks"}, "recompute": {"kind"}, "precision": {"name"}, "offload": set[str]()}
    lists = any(isinstance(part, list) or range_bounds(part) for part in value.values())
    return key in least and least[key] <= set(value) and (key == "recompute" or not lists)


def _counts(setting: _Setting) -> Choices:
    """Degrees and sizes: numbers, and ranges of what the search would try and of powers of two."""
    space_sizes: tuple[int, ...] = () if setting.key == "dp" else getattr(setting.space, setting.key)
    sizes: list[int] = []
    for value in setting.values:
        if (bounds := range_bounds(value)) is None:
            sizes.append(_count(setting, value))
            continue
        inside = sizes_within(bounds, space_sizes, setting.scenario.system.chips)
        if not inside:
            words = ", ".join(map(str, space_sizes)) or "any"
            given_text = "{}..{}".format(*bounds)
            setting.refuse(given_text, f"a range with a choice in it; tried otherwise: {words}", "widen it")
        sizes += inside
    return tuple(dict.fromkeys(sizes))


def _count(setting: _Setting, value: object) -> int:
    """One degree; a shard degree of 0 or "all" means all data-parallel ranks."""
    if setting.key == "shard_degree" and value in (0, "all"):
        return 0
    return setting.plan_value(value) or 0


def _words(setting: _Setting) -> Choices:
    return tuple(dict.fromkeys(setting.plan_value(value) for value in setting.values))


def _placement(setting: _Setting) -> Choices:
    """Layers of each virtual stage; they sum to the model's."""
    layers, model = setting.decoded(setting.values[0]).placement, setting.scenario.model
    if not setting.problems and sum(layers) != model.layers:
        expectation = f"layers of each virtual stage that sum to the {model.layers} of {model.id}"
        setting.refuse(f"{len(layers)} numbers, {sum(layers)} layers", expectation)
    return (layers,)


def _recomputes(setting: _Setting) -> Choices:
    """What is recomputed; parts that are recomputed together, as `norm+mlp` or a list."""
    if setting.part != "parts":
        return _tables(setting)
    sets = (
        [part.strip() for part in value.split("+")] if isinstance(value, str) else value for value in setting.values
    )
    return [setting.decoded({"kind": "selective", "parts": parts}).recompute for parts in sets]


def _tables(setting: _Setting) -> Choices:
    """Choices that are tables themselves: by name or whole, or by a key below."""
    return _agreeing(setting) if setting.part else _named_choices(setting)


def _named_choices(setting: _Setting) -> list[TableChoice]:
    """Choices of a table: a name stands for all that are tried under it, anything else for itself."""
    choices: list[TableChoice] = []
    for value in setting.values:
        made: TableChoice = getattr(setting.decoded(value), setting.key)
        if isinstance(made, Schedule) and made.name not in SCHEDULES:
            setting.problems.append(not_among("plan.schedule.name", made.name, SCHEDULES))
            continue
        attempt = _matching_choices(made, setting.left(setting.key)) if isinstance(value, str) else ()
        choices += [choice for choice in attempt if _name(choice) == _name(made)] or [made]
    return distinct_choices(choices)


def _matching_choices(made: TableChoice, left: Sequence[TableChoice]) -> Sequence[TableChoice]:
    """What a name may stand for: the choices that are left, or every number of chunks of a schedule not among them."""
    if not isinstance(made, (Schedule, Recompute)):
        return ()
    if isinstance(made, Recompute) or any(_name(choice) == made.name for choice in left):
        return left
    kind = SCHEDULES[made.name]
    chunks = range(kind.fewest_chunks, (kind.most_chunks or MOST_CHUNKS) + 1)
    return [Schedule(name=made.name, chunks=count) for count in chunks]


def _name(choice: TableChoice) -> str:
    return choice.name if isinstance(choice, Schedule) else choice.kind if isinstance(choice, Recompute) else ""


def _agreeing(setting: _Setting) -> Sequence[TableChoice]:
    """Choices that agree with a key below the table; where none does, the choices with that key changed."""
    key, part, remaining = setting.key, setting.part, setting.left(setting.key)
    ranges: list[tuple[int, int]] = []
    values: list[object] = []
    for value in setting.values:
        bounds = range_bounds(value) if part == "chunks" else None
        if bounds is not None:
            ranges.append(bounds)
            continue
        plan = setting.decoded({"name": "interleaved", part: value} if part == "chunks" else {part: value})
        if setting.problems:
            return remaining
        values.append(getattr(getattr(plan, key), part, None))

    def agrees(given: Any) -> bool:
        return given in values or any(low <= given <= high for low, high in ranges)

    if (key, part) == ("recompute", "layers"):
        remaining = tuple(choice for choice in remaining if choice.kind != "none")
    peers = [choice for choice in remaining if agrees(getattr(choice, part))]
    if not peers and not values:
        setting.refuse(", ".join(map(str, setting.values)), "a range with a choice in it")
    if peers or not values:
        return peers
    return distinct_choices(replace(choice, **{part: value}) for choice, value in product(remaining, values))


def _switches(setting: _Setting) -> Choices:
    """Every set of switches with each of the values in place of what it has."""
    key, part = setting.key, setting.part
    choices: list[Switches] = []
    for value in setting.values:
        stated = setting.decoded({part: value} if part else value).switches
        for base in setting.left("switches"):
            change: JsonObject = {key: getattr(stated, key)}
            change |= {"overlap": {**base.overlap, **stated.overlap}} if key == "overlap" else {}
            choices.append(replace(base, **change))
    return distinct_choices(choices)


# key of [plan] -> axis of the search, and what reads its values; the engine is no axis: each is a space of its own
PARSERS: Mapping[str, tuple[str, Callable[[_Setting], Choices]]] = MappingProxyType(
    {
        **{key: (key, _counts) for key in COUNTS},
        "placement": ("placement", _placement),
        **{key: (key, _words) for key in ("shard", "order")},
        "recompute": ("recompute", _recomputes),
        **{key: (key, _tables) for key in ("schedule", "offload", "precision")},
        **dict.fromkeys(SWITCHES, ("switches", _switches)),
    }
)
