"""Turn plans on one or several systems into an order: by time, money, energy, memory, or the fewest chips in time.

    cost = chips * price * seconds        energy = chips * rated power * seconds        days: see ``goodput``

On one system of one size money and energy are step time times a constant, so the fastest plan is also the cheapest and
the most frugal. They decide between systems and sizes. Hence also: the Pareto fronts of time and memory on each system
contain the Pareto front of any two of time, memory, cost, energy and chips.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Literal, get_args

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL, HOUR
from ridgeline.hardware.load import rated_power
from ridgeline.hardware.system import System
from ridgeline.plan.plan import Plan, plan_table, plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.choices import powers_of_two
from ridgeline.search.goodput import Goodput, days_to_train, goodput
from ridgeline.search.recommendation import pareto_front
from ridgeline.search.training.plan_search import Search, predict_entries
from ridgeline.sim import Prediction

Objective = Literal["time", "cost", "energy", "memory", "chips"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
LETTERS = MappingProxyType({"k": "k", "M": "M", "B": "G", "G": "G", "T": "T", "P": "P"})
DAY_HOURS = 24
MOST_SIZES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted: the objective, and a run of so many tokens within so many days."""

    objective: Objective = "time"
    tokens: float | None = None
    days: float | None = None

    def problems(self) -> Iterable[Problem]:
        """What is asked together but cannot be answered."""
        if self.days is not None and self.tokens is None:
            todo = "add --tokens, for example --tokens 2T"
            yield Problem(path="--days", given=f"{self.days:g} days", expected="the tokens to train in them", todo=todo)
        if self.objective == "chips" and self.days is None:
            todo = "add --tokens 2T --days 30"
            yield Problem(path="--objective", given="chips", expected="a deadline to meet", todo=todo)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A whole run of a plan: failures counted.

    days, cost_usd, energy_j   None where tokens, price or power are not known
    """

    goodput: Goodput
    days: float
    cost_usd: float | None
    energy_j: float | None

    JSON = """
        days cost_usd energy_j useful=goodput.useful useful_low=goodput.low useful_high=goodput.high
        failures_per_day=goodput.failures_per_day checkpoint_interval_s=goodput.interval_s
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """The best that was found on one system of one size under one engine, and the run it makes.

    table   the scenario as a file would say it, without its plan
    given   whether the scenario came with a plan of its own, which is then compared with what is found
    """

    search: Search
    best: Prediction | None
    run: TrainingRun | None = None
    table: JsonMapping = field(default_factory=lambda: MappingProxyType({}))
    given: bool = False

    @property
    def scenario(self) -> Scenario:
        """What was searched."""
        return self.search.scenario

    @property
    def complete(self) -> bool:
        return self.search.swept.complete

    def value(self, objective: str) -> float | None:
        """What the objective minimises, None where a number is missing."""
        if self.best is None:
            return None
        if objective == "cost" and self.run is not None:
            return self.run.cost_usd
        return amount(self.best, objective)


def amount(prediction: Prediction, objective: str) -> float | None:
    """One of time, memory, cost, energy, chips of a prediction's step."""
    return {
        "time": prediction.step_time_s,
        "memory": prediction.memory.peak_bytes,
        "cost": prediction.bill.cost_usd,
        "energy": prediction.bill.energy_j,
        "chips": float(prediction.scenario.system.chips),
    }[objective]


NO_TABLE: JsonMapping = MappingProxyType({})


def outcome(search: Search, goal: Goal, *, table: JsonMapping = NO_TABLE, given: bool = False) -> PlanOutcome:
    """The best plan of a search by the objective, and its run."""
    plans = rank_plans(search, goal, 1)
    best = plans[0] if plans else None
    run = run_of(best, goal) if best else None
    return PlanOutcome(search=search, best=best, run=run, table=MappingProxyType(dict(table)), given=given)


def rank_plans(search: Search, goal: Goal, most: int) -> tuple[Prediction, ...]:
    """The plans of a search in the objective's order: the fastest, or from the small end of the Pareto front."""
    if goal.objective == "memory":
        return predict_entries(search.scenario, tuple(reversed(search.swept.frontier))[:most], search.calibration)
    return search.plans[:most]


def run_of(prediction: Prediction, goal: Goal) -> TrainingRun | None:
    """The run of a plan over the goal's tokens, or None where none are given.

    days = tokens / (tokens/s * useful share) / 86400        cost = days * 24 * chips * price
    """
    if goal.tokens is None:
        return None
    system = prediction.scenario.system
    goodput_share = goodput(prediction.scenario, prediction.step_time_s)
    speed = prediction.tokens_per_s_per_chip * system.chips
    days = float(days_to_train(goal.tokens, speed, goodput_share.useful))
    seconds = days * DAY_HOURS * HOUR
    price, power = system.chip.price, rated_power(system.chip)
    return TrainingRun(
        goodput=goodput_share,
        days=days,
        cost_usd=days * DAY_HOURS * system.chips * price.value if price else None,
        energy_j=seconds * system.chips * power.value if power else None,
    )


def chosen(outcomes: Sequence[PlanOutcome], goal: Goal) -> PlanOutcome | None:
    """The outcome the goal prefers; None where none qualifies. Of equal ones the faster, then the first."""
    able = [outcome for outcome in outcomes if outcome.value(goal.objective) is not None]
    if goal.days is not None:
        able = [outcome for outcome in able if outcome.run is not None and outcome.run.days <= goal.days]

    def order(outcome: PlanOutcome) -> tuple[float, float]:
        return outcome.value(goal.objective) or 0.0, outcome.value("time") or 0.0

    return min(able, key=order, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan as a point of a Pareto front: what it takes of everything."""

    system: str
    chips: int
    plan: Plan
    time: float
    memory: float
    cost: float | None
    energy: float | None

    JSON = "system chips step_time_s=time peak_memory_bytes=memory cost_usd=cost energy_j=energy plan=table words"

    @property
    def table(self) -> JsonObject:
        """The plan as a scenario file has it, defaults left out."""
        return plan_table(self.plan)

    @property
    def words(self) -> str:
        """The plan in one line."""
        return plan_words(self.plan)

    def amount(self, name: str) -> float | None:
        """One of the quantities."""
        value = getattr(self, name)
        return None if value is None else float(value)


def points(searches: Iterable[Search]) -> list[Point]:
    """All plans on the Pareto fronts of time and memory of some searches; money and power where a price is known."""
    points = []
    for search in searches:
        system = search.scenario.system
        price, power = system.chip.price, rated_power(system.chip)
        for entry in search.swept.frontier:
            work = system.chips * entry.step_s
            cost, energy = work * price.value / HOUR if price else None, work * power.value if power else None
            step_s, peak_bytes = entry.takes
            points.append(
                Point(
                    system=system.name, chips=system.chips, plan=entry.plan, time=step_s, memory=peak_bytes, cost=cost,
                    energy=energy,
                )
            )  # fmt: skip
    return points


def frontier(points: Iterable[Point], first: str, second: str) -> tuple[Point, ...]:
    """The Pareto front of two quantities, in order of the first; points that lack one of them are left out.

    >>> def at(time, memory):
    ...     return Point(system="", chips=1, plan=Plan(), time=time, memory=memory, cost=None, energy=None)
    >>> [point.time for point in frontier([at(3, 1), at(1, 5), at(2, 6)], "time", "memory")]
    [1, 3]
    """
    rows = [((point.amount(first), point.amount(second)), point) for point in points]
    able = [((x, y), point) for (x, y), point in rows if x is not None and y is not None]
    return tuple(point for _, point in pareto_front(able, lambda row: row[0]))


def usual_axes(systems: Iterable[System]) -> tuple[str, str]:
    """Axes of the Pareto front: time and memory; between sizes time and money, or chips where a price is not known."""
    some = list(systems)
    if len({system.chips for system in some}) == 1:
        return "time", "memory"
    return "time", "cost" if all(system.chip.price for system in some) else "chips"


def scaling_efficiency(outcomes: Sequence[PlanOutcome]) -> tuple[float | None, ...]:
    """Tokens per second per chip over those of the same chip's smallest system that fits; None where nothing fits."""
    plans = [outcome.best for outcome in outcomes if outcome.best is not None]
    smallest: dict[str, Prediction] = {}
    for plan in sorted(plans, key=lambda plan: plan.scenario.system.chips):
        smallest.setdefault(plan.scenario.system.chip.id, plan)

    def efficiency(plan: Prediction) -> float:
        return plan.tokens_per_s_per_chip / smallest[plan.scenario.system.chip.id].tokens_per_s_per_chip

    return tuple(None if outcome.best is None else efficiency(outcome.best) for outcome in outcomes)


def pair(text: str) -> tuple[str, str]:
    """Two of the quantities, as `--frontier time,cost` writes them."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in OBJECTIVES:
            raise InputError(not_among("--frontier", name, OBJECTIVES))
    if len(names) != 2 or names[0] == names[1]:
        todo = "for example --frontier time,memory"
        raise InputError(Problem(path="--frontier", given=repr(text), expected="two different quantities", todo=todo))
    return names[0], names[1]


def tokens_of(text: str) -> float:
    """Tokens as people write them.

    >>> tokens_of("2T"), tokens_of("15.6 T"), tokens_of("300B"), tokens_of("1e12")
    (2000000000000.0, 15600000000000.0, 300000000000.0, 1000000000000.0)
    """
    bare = text.strip().replace("_", "")
    scale = DECIMAL[LETTERS[bare[-1]]] if bare[-1:] in LETTERS else 1.0
    try:
        value = float(bare[:-1] if bare[-1:] in LETTERS else bare) * scale
    except ValueError:
        value = float("nan")
    if not 0 < value < DECIMAL["E"]:
        raise InputError(Problem(path="--tokens", given=repr(text), expected="a number of tokens such as 2T or 300B"))
    return value


def sizes_of(text: str, domain: int) -> tuple[int, ...]:
    """Numbers of chips: a list, or a range of powers of two and of full domains, each twice the last.

    >>> sizes_of("64..512", 8), sizes_of("72..300", 72), sizes_of("96, 128", 8)
    ((64, 128, 256, 512), (72, 128, 144, 256, 288), (96, 128))
    """
    wrong = Problem(path="--chips", given=repr(text), expected="a range such as 64..4096 or a list such as 64,96,128")
    low, dots, high = text.partition("..")
    parts = [low, high] if dots else text.split(",")
    if not all(part.strip().isdecimal() and len(part.strip()) < 10 and int(part) > 0 for part in parts):
        raise InputError(wrong)
    numbers = [int(part) for part in parts]
    if not dots:
        result = sorted(set(numbers))
    else:
        powers = powers_of_two(numbers[1])
        domains = (domain * power for power in powers)
        result = sorted({size for size in (*powers, *domains) if numbers[0] <= size <= numbers[1]})
    if not 1 <= len(result) <= MOST_SIZES:
        raise InputError(wrong)
    return tuple(result)


def quarters(below: int, above: int) -> tuple[int, ...]:
    """Sizes between one that is too small and one that is large enough.

    >>> quarters(512, 1024)
    (640, 768, 896)
    """
    step = (above - below) // 4
    return tuple(below + step * part for part in (1, 2, 3)) if step else ()


def divisible_batch(batch: int, chips: int) -> int | None:
    """The global batch near a given one that divides by what is odd in a number of chips; None where that one does.

    >>> divisible_batch(1024, 768), divisible_batch(1024, 896), divisible_batch(1536, 768), divisible_batch(1024, 512)
    (960, 1120, None, None)
    """
    odd = chips // (chips & -chips)
    if batch % odd == 0 or odd > batch // 4:
        return None
    step = odd
    while step * 2 <= batch // 4:
        step *= 2
    return max(1, round(batch / step)) * step


def systems_without_price(systems: Iterable[System], objective: str) -> tuple[str, ...]:
    """Chips without the number that the objective needs."""
    key = {"cost": "price", "energy": "tdp"}.get(objective, "")
    return tuple(dict.fromkeys(system.chip.id for system in systems if key and getattr(system.chip, key) is None))
