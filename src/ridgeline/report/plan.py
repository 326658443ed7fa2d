"""Draw a recommended plan: the winner, the next best, why, what next, how it scales, how sure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_count, format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import (
    DASH,
    INTERVAL_KEY,
    Dot,
    IntervalBar,
    PlotAxis,
    Rows,
    blocks,
    clean,
    facts,
    grid,
    header_table,
    interval_bars,
    list_lines,
    scatter,
)
from ridgeline.report.predict import limits_text
from ridgeline.search import (
    ComparedSystem,
    GivenPlan,
    Loss,
    PlanExplanation,
    PlanReport,
    PricedPlan,
    RecommendedPlan,
    RefinedPlan,
    SystemPlan,
)

WORTH = 0.005  # gains below half a per cent are not worth telling
MOST_UNTOLD = 3  # decisions named of a plan that a target cannot express
MOST_ENGINES = 3  # other engines that are told
ENOUGH_RUNS = 8  # of an engine on a family of chips, below which its gain is hardly more than a guess
COLUMN = 12  # characters that a figure of a comparison takes
MOST = 12  # assumptions shown before the rest is counted
Form = tuple[str, Callable[[float], str]]  # name of a quantity, and how a number of it is written
FORMS: dict[str, Form] = {
    "time": ("step", lambda value: format_quantity(value, "s", 3)),
    "memory": ("memory of the fullest chip", format_gib),
    "cost": ("USD a step", lambda value: f"{value:.3g} USD"),
    "energy": ("energy a step", lambda value: format_quantity(value, "J", 3)),
    "chips": ("chips", lambda value: f"{value:,.0f}"),
}
UNKEPT = "run event by event it does not keep that gain"  # why a plan that the engine takes is not recommended


def draw_plan(report: PlanReport, console: Console) -> None:
    """Print the page of a plan: the winner and the best plans, then the reasons."""
    draw_best(report, console)
    draw_reasons(report, console)


def draw_best(report: PlanReport, console: Console) -> None:
    """Print the systems compared, then the winner and the best plans of each kind: what is known before the reasons."""
    comparison = () if report.search.only_sizes else _system_comparison(report, console.width)
    console.print(blocks(comparison, _headline(report), _top(report)))


def draw_reasons(report: PlanReport, console: Console) -> None:
    """Print what follows the best plans, the most important first; how long the search took stands last."""
    console.print()
    speed = report.found.considered / report.search.time.seconds if report.search.time.seconds else 0.0
    counts = f"{report.found.considered:,} plans priced, {report.found.feasible:,} fit"
    explained = f"; explained in {report.search.time.explain_seconds:.1f} s" if report.reasons.complete else ""
    console.print(
        blocks(
            _stopped_note(report),
            _refined_lines(report),
            _why(report),
            _next(report),
            _software(report),
            _system_comparison(report, console.width) if report.search.only_sizes else (),
            _frontier(report),
            list_lines("assumed", report.reasons.assumptions, most=MOST),
            [Text(f"{counts}; {report.search.time.seconds:.1f} s, {speed:,.0f} plans/s{explained}", style="dim")],
        )
    )


def _table(*columns: str, rows: Rows = (), right: Iterable[str] = ()) -> Table:
    return header_table(columns, rows, right=right, head="dim", overflow="fold")


def _headline(report: PlanReport) -> Iterable[RenderableType]:
    best, scenario = report.winner, report.scenario
    span, capacity, work = best.interval, report.capacity_bytes, scenario.workload
    what = f"{scenario.model.id} on {system_title(scenario.system)}, {work.sequences} x {work.seq} tokens a step"
    yield Text.assemble(clean(what), style="bold")
    low, high = format_quantity(span.low, "s", 3), format_quantity(span.high, "s", 3)
    step = Text.assemble(
        (format_quantity(best.step_time_s, "s"), "bold"),
        (f"   {low} to {high} with {span.coverage:.0%} probability", "dim"),
    )
    free = 1 - best.memory.peak_bytes / capacity
    rows: list[tuple[str, Text | str]] = [
        ("plan", Text(best.plan_words, style="bold green")),
        ("", Text(f"under {scenario.plan.engine}{_target(report)}", style="dim")),
        ("step", step),
        ("speed", f"{best.tokens_per_s_per_chip:,.0f} tokens/s/chip   MFU {best.utilization.mfu:.1%}"),
        ("memory", f"{format_gib(best.memory.peak_bytes)} of {format_gib(capacity)}, {free:.0%} free"),
    ]
    cost_usd, energy_j = best.bill.cost_usd, best.bill.energy_j
    words = [] if cost_usd is None else [f"{cost_usd:.3g} USD a step"]
    words += [] if energy_j is None else [f"{format_quantity(energy_j, 'J', 3)} at rated power"]
    bill = ", ".join(words)
    rows += [("bill", bill)] if bill else []
    rows += [("run", run_words)] if (run_words := _run(report)) else []
    rows += [("fastest", _passed_over(report.fastest, report.tolerance))] if report.fastest else []
    rows += [("yours", _given_plan_text(report.reasons.given))] if report.reasons.given else []
    if not report.found.complete:
        rows.append(("stopped", Text("before all plans were priced: the best so far", style="bold yellow")))
    yield facts(*rows)
    if len(report.search.compared) < 2:
        yield from _skipped_notes(report)


def _skipped_notes(report: PlanReport) -> Iterable[RenderableType]:
    """Sizes that were left out, and systems that were not searched."""
    yield from (Text.assemble("  - ", clean(note), style="dim") for note in report.found.skipped)


def _passed_over(fastest: PricedPlan, tolerance: float) -> str:
    """The fastest plan, and why it was not chosen."""
    less = f"{format_quantity(-fastest.lost_s, 's', 3)} ({-fastest.lost_s / fastest.winner.step_time_s:.2%}) less"
    return f"{fastest.words}: {less}; passed over: within {tolerance:.1%} the plan with fewer moving parts is chosen"


def _target(report: PlanReport) -> str:
    """The target that the plan is for, where one was asked for."""
    target = report.found.request.target
    return f", {target.id} can express all of it" if target else ""


def _run(report: PlanReport) -> str:
    if (run := report.run) is None:
        return ""
    tokens = format_count(report.run_tokens or 0.0)
    words = [f"{tokens} tokens in {run.days:.1f} days, {run.goodput.useful:.1%} of them useful"]
    words += [] if run.cost_usd is None else [f"{run.cost_usd:,.0f} USD"]
    words += [] if run.energy_j is None else [format_quantity(run.energy_j, "J", 3)]
    return ", ".join(words)


def _given_plan_text(own: GivenPlan) -> str:
    place = f"{own.faster:,} plans are faster" if own.faster else "none is faster"
    lost_s = own.loss.seconds
    lost = f"{signed_quantity(lost_s, 's')} to the best: {own.loss.to}" if lost_s else "the best itself"
    return f"{own.prediction.plan_words}: {format_quantity(own.prediction.step_time_s, 's')}, {place}; {lost}"


def _top(report: PlanReport) -> Iterable[RenderableType]:
    right = ("", "step", "loses", "memory", "tokens/s/chip", "MFU")
    rows = (
        (str(number), format_quantity(plan.prediction.step_time_s, "s"),
         signed_quantity(plan.lost_s, "s") if number > 1 else DASH, format_gib(plan.prediction.memory.peak_bytes),
         f"{plan.prediction.tokens_per_s_per_chip:,.0f}", f"{plan.prediction.utilization.mfu:.1%}", plan.words)
        for number, plan in enumerate(report.kinds, 1)
    )  # fmt: skip
    yield _table(*right, "plan", rows=rows, right=right)
    if len(report.kinds) > 1:
        yield Text("the best plan of each kind: another mesh, sharding or recompute", style="dim")


def _stopped_note(report: PlanReport) -> Iterable[RenderableType]:
    if report.found.complete and not report.reasons.complete:
        yield Text("stopped before all reasons were found", style="bold yellow")


def _refined_lines(report: PlanReport) -> Iterable[RenderableType]:
    """What moving layers and recomputing by stage gain, and what of it is handed over."""
    own = report.recommended
    if own.refined:
        yield from _gain_lines(own, "refined ")
        if own.of != report.winner.plan_words:
            yield Text.assemble(("        of ", "dim"), own.of)
    beyond = own.beyond
    if beyond is not None:
        yield from _gain_lines(beyond, "further ")
        yield Text.assemble(("        but ", "dim"), clean(beyond.lacking or UNKEPT))


def _gain_lines(plan: RecommendedPlan | RefinedPlan, name: str) -> Iterable[RenderableType]:
    share = plan.saves_s / (plan.prediction.step_time_s + plan.saves_s)
    gain = f"saves {format_quantity(plan.saves_s, 's', 3)} ({share:.1%}) of plan 1"
    step = format_quantity(plan.prediction.step_time_s, "s")
    yield Text.assemble(
        (name, "dim"), (step, "bold"), f", {gain}, {format_gib(plan.prediction.memory.peak_bytes)}: {plan.words}"
    )
    for change in plan.changes:
        yield Text.assemble(("        - ", "dim"), change)


def _why(report: PlanReport) -> Iterable[RenderableType]:
    total = report.winner.step_time_s
    rows = [(loss.choice, signed_quantity(loss.seconds, "s"), loss.to) for loss in report.reasons.why.losses]
    if rows:
        yield _table("instead", "loses", "to", rows=rows, right=("loses",))
    yield limits_text(report.winner)
    events = report.plans[0].simulated_s
    if events is not None:
        text = f"{format_quantity(events, 's')} ({signed_share(events / total - 1, 2)}); {_order(report)}"
        yield Text.assemble(("event by event ", "dim"), text)
    runner_up = report.reasons.why.runner_up
    if runner_up is not None:
        yield Text.assemble(("how sure ", "dim"), _confidence(report.reasons.why, runner_up, total))


def _confidence(why: PlanExplanation, runner_up: Loss, total_s: float) -> str:
    """Whether the order of the first plans can be trusted."""
    gap = f"{signed_quantity(runner_up.seconds, 's')} ({signed_share(runner_up.seconds / total_s)})"
    lead = f"the best plan of another kind takes {gap}"
    interval = f"the {why.winner.interval.coverage * 100:.0f} % interval ({why.winner.interval.basis})"
    if not runner_up.overlaps:
        return f"{lead}, which is beyond {interval}"
    return f"{lead}; {_next_plans(why.doubted, why.shortlist)} within {interval}: measure to decide"


def _next_plans(overlapping: int, shortlist: int) -> str:
    """How many of the plans that follow may be as fast.

    >>> _next_plans(63, 63), _next_plans(2, 63)
    ('the next 63 plans are', '2 of the next 63 plans are')
    """
    if shortlist == 1:
        return "the next plan is"
    share = "the" if overlapping == shortlist else f"{overlapping} of the"
    return f"{share} next {shortlist} plans are"


def _order(report: PlanReport) -> str:
    """Whether the plans that were simulated stay in their order."""
    many = sum(plan.simulated_s is not None for plan in report.plans)
    best = report.best_simulated
    if best.simulated_s is None or best.prediction is report.winner:
        return f"still the best of the first {many}"
    return f"the best of the first {many} is then {best.words}: {format_quantity(best.simulated_s, 's')}"


def _next(report: PlanReport) -> Iterable[RenderableType]:
    if not report.next:
        return
    table = _table("next", "gains", "how", "by", right=("gains",))
    for change in report.next:
        table.add_row(
            change.what,
            signed_share(change.gain),
            change.how or "another machine",
            Text(change.prediction.plan_words, style="dim"),
        )
    yield table


def software(report: PlanReport) -> list[tuple[str, str, str, str]]:
    """What a feature or another engine would gain, the best first: what, gain, how, and the plan then.

    Engines that were hardly measured are told apart from those that were, and fewer of them.
    """
    rows = [(feature.gain, feature.what, feature.how, feature.prediction.plan_words) for feature in report.features]
    better = [engine for engine in report.reasons.engines if engine.gain >= WORTH]
    known = [one for one in better if one.runs >= ENOUGH_RUNS][:MOST_ENGINES]
    guessed = [one for one in better if one.runs < ENOUGH_RUNS][: MOST_ENGINES - 1]
    for one in (*known, *guessed):
        remarks = ["closed"] if one.availability == "closed" else []
        few = f"{one.runs or 'no'} run{'s' if one.runs > 1 else ''} measured"
        remarks += [few] if one.runs < ENOUGH_RUNS else []
        remark = f" ({', '.join(remarks)})" if remarks else ""
        has = f": {', '.join(one.has)}" if one.has else ""
        rows.append((one.gain, f"engine {one.engine.id}{remark}{has}", one.how, one.prediction.plan_words))
    target = report.found.request.target
    for other in report.reasons.untold if target else ():
        sentence = ", ".join(f"{part.path.removeprefix('plan.')} = {part.value}" for part in other.untold[:MOST_UNTOLD])
        what = f"{target.id if target else ''} cannot express {sentence}: {other.untold[0].why}"
        rows.append((other.gain, what, "another target", other.prediction.plan_words))
    return [(what, signed_share(gain), how, words) for gain, what, how, words in sorted(rows, reverse=True)]


def _software(report: PlanReport) -> Iterable[RenderableType]:
    rows = software(report)
    if rows:
        cells = ((clean(what), gain, how, Text(words, style="dim")) for what, gain, how, words in rows)
        yield _table("other engines, features", "gains", "how", "by", rows=cells, right=("gains",))
    if report.reasons.complete:
        note = "other engines were searched coarsely, predictions against predictions"
        yield Text(note if rows else f"{note}: none is faster", style="dim")


def _system_comparison(report: PlanReport, width: int) -> Iterable[RenderableType]:
    """The systems beside each other, drawn, and how sure their order is; then what each would run."""
    rows = report.search.compared
    if len(rows) < 2:
        return
    goal, work = report.found.request.goal.objective, report.scenario.workload
    yield Text(f"{clean(report.scenario.model.id)}, {work.sequences} x {work.seq} tokens a step", style="bold")
    yield from _comparison_tables(rows, width)
    sizes = {row.outcome.scenario.system.chips for row in rows}
    if len(sizes) > 1:
        yield Text("efficiency: tokens/s/chip over those of the same chip's smallest system that fits", style="dim")
    yield from _comparison_bars(rows, goal)
    yield from _comparison_lines(report)
    plans = [row.plan for row in rows if row.plan]
    if len({plan.best.scenario.system.chips for plan in plans}) > 2:
        yield from _curve(plans)
    yield from _skipped_notes(report)


def _comparison_tables(rows: Sequence[ComparedSystem], width: int) -> Iterable[Table]:
    """A row for each system; on a narrow terminal in two tables."""
    speed = ["step", "90% interval", "tokens/s/chip", "efficiency", "MFU", "limited by"]
    amounts = ["memory", "USD/M tokens", "J/token", "days", "USD"]
    absent = {"efficiency"} if len({row.outcome.scenario.system.chips for row in rows}) == 1 else set()
    absent |= set() if any(row.outcome.run for row in rows) else {"days", "USD"}
    cells = [(row, _row(row)) for row in rows]
    figures = [name for name in (*speed, *amounts) if name not in absent]
    in_one = width >= COLUMN * (len(figures) + 1)
    for names in (figures,) if in_one else (speed, amounts):
        columns = [name for name in names if name in figures]
        table = _table("system", *columns, right=[name for name in columns if name != "limited by"])
        for row, texts in cells:
            table.add_row(*(texts[name] for name in ("system", *columns)), style="bold green" if row.chosen else "")
        yield table


def _row(row: ComparedSystem) -> dict[str, str]:
    remark = "" if row.outcome.complete else " (not searched to the end)"
    system, plan = f"{'* ' * row.chosen}{row.name}{remark}", row.plan
    if plan is None:
        reason = "nothing fits" if row.outcome.search.swept.considered else "nothing can be laid out"
        return defaultdict(lambda: DASH, {"system": system, "limited by": reason})
    best, run = plan.best, row.outcome.run
    name, seconds = next(iter(best.bounds.items()))
    cost, energy = plan.usd_per_million_tokens, plan.joules_per_token
    return {
        "system": system,
        "step": format_quantity(best.step_time_s, "s"),
        "90% interval": _range_words(best.interval.low, best.interval.high),
        "tokens/s/chip": f"{best.tokens_per_s_per_chip:,.0f}",
        "efficiency": f"{row.efficiency or 0.0:.0%}",
        "MFU": f"{best.utilization.mfu:.1%}",
        "memory": format_gib(best.memory.peak_bytes),
        "USD/M tokens": DASH if cost is None else f"{cost:.3g}",
        "J/token": DASH if energy is None else f"{energy:.3g}",
        "days": f"{run.days:.1f}" if run else DASH,
        "USD": DASH if run is None or run.cost_usd is None else f"{run.cost_usd:,.0f}",
        "limited by": f"{name} {seconds / best.step_time_s:.0%}",
    }


def _range_words(low: float, high: float) -> str:
    """Two times with their unit, once where it is the same.

    >>> _range_words(29.5, 51.9), _range_words(0.95, 1.2)
    ('29.5–51.9 s', '950 ms–1.2 s')
    """
    first, last = format_quantity(low, "s", 3), format_quantity(high, "s", 3)
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first}–{last}"


def _comparison_bars(rows: Sequence[ComparedSystem], goal: str) -> Iterable[RenderableType]:
    """What the objective minimises, by system, as bars with the ends of their intervals."""
    name = goal if goal in ("cost", "energy") else "time"
    amounts = [(row, row.outcome.value(name)) for row in rows[:MOST] if row.plan]
    spans = [
        (row.name, value, plan.best.interval, plan.best.step_time_s)
        for row, value in amounts
        if value is not None and (plan := row.plan)
    ]
    if len(spans) < 2:
        return
    drawn = [(title, IntervalBar(low=value * span.low / step_s, middle=value, high=value * span.high / step_s))
             for title, value, span, step_s in spans]  # fmt: skip
    yield Text(f"{FORMS[name][0]} with its 90% interval: {INTERVAL_KEY}", style="dim")
    yield grid("left", "left", rows=((clean(title), line) for title, line in interval_bars(drawn)))


def _comparison_lines(report: PlanReport) -> Iterable[RenderableType]:
    """Which systems are the best as far as anybody can tell, what a missing number would need, and the plans."""
    comparison, rows = report.search.comparison, [row for row in report.search.compared if row.standing]
    if comparison is not None:
        best = f"{comparison.chosen} is predicted the {comparison.best_words}"
        doubts = ", ".join(f"{name} (chance {comparison.chance_better[name]:.0%})" for name in comparison.alike_systems)
        if doubts:
            yield Text(f"{best}; statistically it cannot be told apart from {doubts}: measure to decide")
        else:
            yield Text(f"{best}; each other system has a chance below {(1 - comparison.coverage) / 2:.0%}")
        yield Text(f"({comparison.assumption})", style="dim")
    needs = {item.words: None for row in rows if row.standing for item in row.standing.missing}
    yield from (Text.assemble("  - ", clean(words)) for words in needs)
    several = len({row.outcome.scenario.plan.engine for row in rows}) > 1
    plans = [(row, row.plan.best.plan_words) for row in rows if row.plan]
    yield facts(
        *((row.name, f"{words}, {row.outcome.scenario.plan.engine}" if several else words) for row, words in plans)
    )


def _curve(plans: Sequence[SystemPlan]) -> Iterable[RenderableType]:
    """Tokens per second by chips, beside what perfect scaling from the smallest would give."""
    sizes = [plan.best.scenario.system.chips for plan in plans]
    first = min(plans, key=lambda plan: plan.best.scenario.system.chips).best.tokens_per_s_per_chip
    ideal = [Dot(x=chips, y=first * chips, mark=".") for chips in sizes]
    real = [Dot(x=chips, y=plan.tokens_per_s) for chips, plan in zip(sizes, plans, strict=True)]
    across, up = (
        PlotAxis(name="chips", form=lambda value: f"{value:,.0f}"),
        PlotAxis(name="tokens/s", form=format_count),
    )
    yield Text("scaling: o predicted, . in proportion to the smallest", style="dim")
    yield from (Text(line.rstrip(), no_wrap=True) for line in scatter([*ideal, *real], across, up))


def _frontier(report: PlanReport) -> Iterable[RenderableType]:
    first, second = report.found.frontier_axes
    points = report.found.frontier
    if len(points) < 2:
        return
    dots = [Dot(x=point.amount(first) or 0.0, y=point.amount(second) or 0.0) for point in points]
    dots.append(Dot(x=report.winner_amount(first), y=report.winner_amount(second), mark="*"))
    yield Text(f"frontier: the {len(points)} plans that no other beats in both, * the one chosen", style="dim")
    across, up = (PlotAxis(name=FORMS[axis][0], form=FORMS[axis][1]) for axis in (first, second))
    yield from (Text(line.rstrip(), no_wrap=True) for line in scatter(dots, across, up))
