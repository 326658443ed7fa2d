"""Turn a study into its requirement list: what limits each workload today, what it costs, what to ask of whom.

gain        time today / time if the ask is met, by the same prediction
interval    a changed number may be reached to 0.7 or 1.3 of its change, in logarithms: as for any chip that nobody
            has measured; of software and of sizes as predicted, within the prediction's own interval
falsify     what a run on today's machine with a number moved by five per cent has to show
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import InputError, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.units import HOUR, format_duration, format_quantity
from ridgeline.design.elasticities import limiters, part_bound
from ridgeline.design.exchange_floor import exchange_floor
from ridgeline.design.machine_parameters import MachineParameter, factor_rows, machine_parameters
from ridgeline.design.points import METRICS, tokens_of, usd_per_million
from ridgeline.design.report_answer import Ask, ReportFigure, RequirementReport, Team, TeamReport
from ridgeline.design.sense import sense
from ridgeline.design.sensitivity import Elasticity, SensitivityAnswer
from ridgeline.design.space import DesignSpace
from ridgeline.design.study import DesignStudy
from ridgeline.hardware.what_if import OF_A_CHANGE
from ridgeline.models.spec import Moe
from ridgeline.plan.plan import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.batches import MachineRows
from ridgeline.version import __version__

TITLES: dict[Team, str] = {
    "chip": "Chip team",
    "network": "Network team",
    "framework": "Framework team",
    "model": "Model team",
    "money": "Who pays",
}
LEAST = 0.02  # elasticity from which an ask is worth a line
LINES = 6  # of a team and workload
FURTHEST, USUAL = 4.0, 2.0  # times a number that is asked for at most, and where no regime ends before
NUDGE = 0.05  # by which a falsifying run moves a number


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedWorkload:
    """One workload of the study as it runs today, with what it answers to."""

    name: str
    scenario: Scenario
    rows: MachineRows
    answer: SensitivityAnswer
    parameters: tuple[MachineParameter, ...]
    usd_per_hour: float

    @property
    def seconds(self) -> float:
        """Time of a step or token today."""
        return float(self.rows.times({}, 1).seconds[0])

    def seconds_at(self, parameter: MachineParameter, factor: float) -> float:
        """The same with one number of the machine so many times what it is."""
        place = self.parameters.index(parameter)
        values = np.ones((1, len(self.parameters)))
        values[0, place] = factor
        return float(self.rows.times(factor_rows(self.parameters, values), 1).seconds[0])


def requirement_report(study: DesignStudy, team: str = "") -> RequirementReport:
    """The requirement list of a study, or one team's part of it."""
    if team and team not in TITLES:
        raise InputError(not_among("--team", team, tuple(TITLES)))
    space = DesignSpace(study)
    works = [_study_workload(space, place) for place in range(len(space.workloads))]
    makers = {"chip": _machine_asks, "network": _network_asks, "framework": _framework_asks, "model": _model_asks}
    teams = []
    for name, title in TITLES.items():
        if team in ("", name):
            asks = [
                ask for work in works for ask in (makers[name](work) if name in makers else _money_asks(space, work))
            ]
            asks.sort(key=lambda ask: (-ask.gain, ask.workload, ask.bottleneck))
            teams.append(TeamReport(team=name, title=title, ask=_sentence(asks), asks=tuple(asks)))
    return RequirementReport(
        study=study.name,
        title=study.title,
        summary=_summary(works, teams),
        teams=tuple(teams),
        figures=tuple(_figures(works)),
        provenance=MappingProxyType(_provenance(study, works)),
        inputs_hash=study.inputs_hash,
        notes=tuple(_notes(works)),
    )


def _study_workload(space: DesignSpace, place: int) -> StudiedWorkload:
    """A workload by the best of its plans today."""
    plans = [
        (space.rows_that_fit(place, plan, None, {}), plan) for plan in range(len(space.workloads[place].scenarios))
    ]
    able = [(rows, plan) for rows, plan in plans if rows is not None]
    rows, plan = min(able, key=lambda entry: float(entry[0].times({}, 1).seconds[0]))
    scenario = space.scenario(place, plan)
    hour = float(space.costs({}, 1).usd_per_hour[0]) * scenario.system.chips
    return StudiedWorkload(
        name=space.workloads[place].name,
        scenario=scenario,
        rows=rows,
        answer=sense(scenario),
        parameters=machine_parameters(rows),
        usd_per_hour=hour,
    )


def _asks_of(work: StudiedWorkload, groups: Sequence[str]) -> Iterator[Ask]:
    """Asks for numbers of the machine: of each that matters, to where it stops limiting, at most four times."""
    by_name = {parameter.parameter: parameter for parameter in work.parameters}
    chosen = [
        entry
        for entry in work.answer.machine
        if entry.group in groups and abs(entry.elasticity) >= LEAST and entry.parameter in by_name
    ]
    for entry in chosen[:LINES]:
        yield _number_ask(work, entry, by_name[entry.parameter])


def _number_ask(work: StudiedWorkload, entry: Elasticity, parameter: MachineParameter) -> Ask:
    better = 1 if entry.kind == "rate" else -1
    change = entry.upper_change if better > 0 else entry.lower_change
    factor = USUAL if change is None else float(np.clip(change.factor**better, 1.1, FURTHEST))
    seconds = work.seconds
    gains = [
        seconds / work.seconds_at(parameter, factor ** (better * share))
        for share in (1 - OF_A_CHANGE, 1.0, 1 + OF_A_CHANGE)
    ]
    verb = "raise" if better > 0 else "lower"
    value, asked_values = (
        format_quantity(number, entry.unit, 3) for number in (entry.value, entry.value * factor**better)
    )
    then = (
        f", where {change.limiter} begins to limit"
        if change is not None and abs(np.log(change.factor)) <= np.log(FURTHEST)
        else ""
    )
    moved_s = work.seconds_at(parameter, (1 - NUDGE) ** better)
    return Ask(
        workload=work.name,
        bottleneck=entry.title,
        evidence=f"elasticity {entry.elasticity:+.3f} at {value} ({entry.evidence}: {entry.source})",
        today_s=abs(entry.elasticity) * seconds,
        today_usd_per_hour=abs(entry.elasticity) * work.usd_per_hour,
        ask=f"{verb} {entry.parameter} from {value} to {asked_values} (x {factor**better:.2f}){then}",
        gain=gains[1],
        gain_low=min(gains),
        gain_high=max(gains),
        confidence=entry.evidence,
        falsify=f"run it with {entry.parameter} {NUDGE:.0%} {'lower' if better > 0 else 'higher'}: "
        f"{work.answer.metric} has to "
        f"rise by {moved_s / seconds - 1:.2%}, from {format_duration(seconds)} to {format_duration(moved_s)}",
        formula=f"{format_duration(seconds)} / {format_duration(seconds / gains[1])}",
    )


def _machine_asks(work: StudiedWorkload) -> Iterator[Ask]:
    yield from _asks_of(work, ("chip",))


def _network_asks(work: StudiedWorkload) -> Iterator[Ask]:
    yield from _asks_of(work, ("network",))
    scenario = work.scenario
    if scenario.workload.kind == "decode" and any(isinstance(block.ffn, Moe) for block in scenario.model.blocks):
        yield _exchange_ask(work)


def _exchange_ask(work: StudiedWorkload) -> Ask:
    """The floor under TPOT that the exchange of tokens between experts is, at today's and at scale-up rates."""
    tiers = work.scenario.system.tiers
    slow, fast = tiers[-1].need_bandwidth().value, tiers[0].need_bandwidth().value
    today, then = exchange_floor(work.scenario.model, slow), exchange_floor(work.scenario.model, max(fast, 2 * slow))
    return Ask(
        workload=work.name,
        bottleneck="exchange of tokens between experts",
        evidence=f"{today.layer_s * 1e6:.1f} us a layer at {format_quantity(slow, 'B/s', 3)}, 32 tokens, "
        "fp8 there, bf16 back",
        today_s=today.tpot_s,
        today_usd_per_hour=None,
        ask=f"let {format_quantity(max(fast, 2 * slow), 'B/s', 3)} reach every expert: "
        "a larger domain, or links as fast",
        gain=today.tpot_s / then.tpot_s,
        gain_low=(today.tpot_s / then.tpot_s) ** 0.7,
        gain_high=today.tpot_s / then.tpot_s,
        confidence="analytic",
        falsify=f"a decode of the same batch below {format_duration(today.tpot_s)} a token on today's links",
        formula="(1 B + 2 B) x tokens x experts of a token x width / bandwidth, x 2 microbatches x layers",
    )


def _framework_asks(work: StudiedWorkload) -> Iterator[Ask]:
    """What software loses: its own latencies, and communication that nothing hides."""
    yield from _asks_of(work, ("software",))
    times = work.rows.times({}, 1)
    seconds = float(times.seconds[0])
    for name, column in times.parts.items():
        spent = float(np.ravel(column)[0])
        if spent < LEAST * seconds or (part_bound(name) != "network" and name not in ("bubble", "kernel")):
            continue
        yield Ask(
            workload=work.name,
            bottleneck=f"exposed {name}",
            evidence=f"{spent / seconds:.1%} of {work.answer.metric}, predicted",
            today_s=spent,
            today_usd_per_hour=spent / seconds * work.usd_per_hour,
            ask=f"hide all of {name} behind compute: {format_duration(spent)} of {format_duration(seconds)}",
            gain=seconds / (seconds - spent),
            gain_low=seconds / (seconds - spent / 2),
            gain_high=seconds / (seconds - spent),
            confidence="fitted",
            falsify=f"a trace with less than {format_duration(spent * 0.7)} of {name} exposed",
            formula=f"t / (t - {name}); the low end hides half of it. Items do not add up: each is alone",
        )


def _model_asks(work: StudiedWorkload) -> Iterator[Ask]:
    """What sizes cost: each made smaller by one step that the plan allows."""
    for entry in work.answer.model[:LINES]:
        if abs(entry.below) < LEAST or entry.parameter.startswith("workload."):
            continue
        seconds, factor = work.seconds, 1 - entry.step
        gain = factor ** (-entry.below)
        yield Ask(
            workload=work.name,
            bottleneck=entry.title,
            evidence=f"elasticity {entry.below:+.3f} downwards at {entry.value:g}",
            today_s=abs(entry.below) * seconds,
            today_usd_per_hour=abs(entry.below) * work.usd_per_hour,
            ask=f"{entry.parameter} {entry.value * factor:g} for {entry.value:g}, the next that divides, "
            "if quality allows",
            gain=gain,
            gain_low=min(1.0, gain),
            gain_high=gain,
            confidence="analytic",
            falsify=f"a step of the smaller model that is not {gain - 1:.2%} faster; its loss is unknown here",
            formula=f"({factor:.4f}) ^ -({entry.below:+.3f})",
        )


def _money_asks(space: DesignSpace, work: StudiedWorkload) -> Iterator[Ask]:
    """What the work costs today, what one per cent of the strongest number is worth, and what stands idle."""
    seconds, scenario = work.seconds, work.scenario
    chip = space.chip
    hour = work.usd_per_hour / scenario.system.chips
    cost = usd_per_million(hour, scenario, seconds)
    first = next(entry for entry in work.answer.machine if entry.kind == "rate")
    year = abs(first.elasticity) * work.usd_per_hour * HOURS_OF_YEAR / 100
    yield Ask(
        workload=work.name,
        bottleneck="price of an hour",
        evidence=f"{hour:.2f} USD a chip and hour, {scenario.system.chips} chips",
        today_s=seconds,
        today_usd_per_hour=work.usd_per_hour,
        ask=f"{cost:.3g} USD a million tokens; 1 % of {first.parameter} is worth {year:,.0f} USD a year",
        gain=1.0,
        gain_low=1.0,
        gain_high=1.0,
        confidence=chip.price.evidence.label if chip.price else "assumed",
        falsify="a bill: tokens counted over a month against chip hours paid",
        formula="USD/h x chips x seconds / tokens",
    )
    idle = idle_memory_usd_per_hour(space, work)
    if idle > 0.02 * hour:
        gain = hour / (hour - idle)
        yield Ask(
            workload=work.name,
            bottleneck="memory that stands idle",
            evidence=f"memory bandwidth has elasticity {_memory_elasticity(work):+.3f}",
            today_s=0.0,
            today_usd_per_hour=idle * scenario.system.chips,
            ask=f"run it on chips with less memory: {idle:.2f} USD a chip and hour are of memory that it does not use",
            gain=gain,
            gain_low=1.0,
            gain_high=gain,
            confidence="assumed",
            falsify="a quotation for a chip with cheaper memory that is not that much below",
            formula="(HBM and its interfaces) x margin / life x (1 - share of the time that follows from memory)",
        )


HOURS_OF_YEAR = 8766


def _memory_elasticity(work: StudiedWorkload) -> float:
    return next(entry.elasticity for entry in work.answer.machine if entry.parameter == "chip.hbm.bandwidth")


def idle_memory_usd_per_hour(space: DesignSpace, work: StudiedWorkload) -> float:
    """Dollars an hour of a chip's memory and its interfaces, as far as a workload's time does not follow from them."""
    cost, tech = space.base_cost, space.tech
    silicon = float(cost.area_parts["memory interfaces"] / cost.area_mm2)
    capacity = space.today["memory.capacity"] * tech["hbm.price_per_byte"]
    remainder = float(cost.made_usd) - capacity
    hours = space.tariff.years * HOURS_OF_YEAR
    return (
        (capacity + remainder * silicon) * space.tariff.margin / hours * (1 - min(1.0, abs(_memory_elasticity(work))))
    )


def _sentence(asks: Sequence[Ask]) -> str:
    return (
        f"{asks[0].workload}: {asks[0].ask} (x {asks[0].gain:.2f})."
        if asks
        else "Nothing that you own limits these workloads."
    )


def _summary(works: Sequence[StudiedWorkload], teams: Sequence[TeamReport]) -> str:
    limits = "; ".join(f"{work.name} is limited by {work.answer.limiter}" for work in works)
    asks = [ask for team in teams for ask in team.asks if team.team != "money"]
    best = max(asks, key=lambda ask: ask.gain, default=None)
    return f"{limits}." + (
        "" if best is None else f" The largest single gain: {best.workload}, {best.ask}, x {best.gain:.2f}."
    )


def _figures(works: Sequence[StudiedWorkload]) -> Iterator[ReportFigure]:
    for work in works:
        times = work.rows.times({}, 1)
        bars = [(name, float(np.ravel(column)[0])) for name, column in times.parts.items()]
        shown_rows = tuple(sorted((bar for bar in bars if bar[1] > 0), key=lambda bar: -bar[1]))
        yield ReportFigure(title=f"{work.name}: {METRICS[work.scenario.workload.kind]}", unit="s", bars=shown_rows)
        entries = sorted(work.answer.machine, key=lambda entry: -abs(entry.elasticity))[:10]
        yield ReportFigure(
            title=f"{work.name}: elasticities",
            unit="%/%",
            bars=tuple((entry.parameter, entry.elasticity) for entry in entries if abs(entry.elasticity) > LEAST / 10),
        )


def _provenance(study: DesignStudy, works: Sequence[StudiedWorkload]) -> dict[str, str]:
    provenance = {
        "ridgeline": __version__,
        "inputs": study.inputs_hash,
        "calibration": works[0].rows.calibration.source,
    }
    for work in works:
        scenario = work.scenario
        place = limiters(work.rows.times({}, 1))
        provenance[work.name] = (
            f"{scenario.model.id} on {scenario.system.name}, {plan_words(scenario.plan)}, {scenario.plan.engine}; "
            f"{tokens_of(scenario):g} tokens, largest part {place[1][int(place[0][0])]}"
        )
    return provenance


def _notes(works: Sequence[StudiedWorkload]) -> Iterator[str]:
    yield "every gain is of one ask alone: asks do not multiply where they end at the same limit"
    yield f"dollars are of the whole system by the hour: seconds / {HOUR:g} x chips x price"
    for work in works:
        if work.answer.low is not None and work.answer.high is not None:
            low, high = format_duration(work.answer.low), format_duration(work.answer.high)
            yield f"{work.name}: {format_duration(work.seconds)}, {low} to {high}"
