"""The page that searches: every plan of the space is priced; the best, the front, and why not the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ridgeline.core.encode import toml_text
from ridgeline.core.units import format_duration
from ridgeline.plan.plan import Plan, plan_table
from ridgeline.report.pieces import chart_svg, frontier_caption, frontier_chart, prediction_evidence
from ridgeline.search import Loss, NoPlan, PlanReport, Progress, SearchTime
from ridgeline.sim import Prediction
from ridgeline.web.blocks import (
    CodeText,
    FigureItem,
    FigureRow,
    GridTable,
    LinkCell,
    PageBlock,
    PageView,
    ProblemList,
    SvgPicture,
    TableCell,
    TaskButton,
    TextLines,
)
from ridgeline.web.controls import state_controls
from ridgeline.web.explained_step import cost_number, memory_number, mfu_number, step_number
from ridgeline.web.figures import ExplainedNumber, explain_number, given_input, number_input
from ridgeline.web.jobs import Tell
from ridgeline.web.scenarios import Shelf, chip_settings, file_of, is_scenario_file, machine_name
from ridgeline.web.state import PageState, page_choices
from ridgeline.web.views.predict import breakdown_chart, headline

ASKED = ("model", "seq", "batch", "machine", "chips", "precision", "engine", "x_compute", "x_bandwidth", "x_capacity",
         "x_scaleup", "x_scaleout", "goal", "set")  # fmt: skip
"""Choices of a search: the plan is what it finds."""


def plan_view(state: PageState, shelf: Shelf) -> PageView:
    """What will be searched, and the button that starts it."""
    del shelf
    return PageView(
        page="plan", title=f"How should {state['model']} be trained on {machine_name(state)}?",
        answer="Every way to split the work is priced with the formulas of Predict; the best are simulated, too.",
        controls=state_controls(state, ASKED),
        blocks=(TaskButton(task="search", label="Search all plans", automatic=True,
                           note="Cancel shows the best so far. The same question is searched once."),),
        command=_command(state), evidence=prediction_evidence(), url=state.url,
    )  # fmt: skip


def _options(state: PageState) -> tuple[str, ...]:
    precision, engine = state.values.get("precision"), state["engine"]
    pins = [f"plan.precision={precision}"] if precision else []
    pins += [f"plan.engine={engine}"] if engine else []
    return (*pins, *chip_settings(state), *state.settings)


def _command(state: PageState) -> str:
    import shlex

    words = [word for setting in _options(state) for word in ("--set", setting)]
    goal = ["--objective", state["goal"]] if state["goal"] != "time" else []
    sizes = ["--seq", state["seq"], "--global-batch", state["batch"]]
    return shlex.join(["ridgeline", "plan", state["model"], "--on", machine_name(state), *sizes, *goal, *words])


def search_task(state: PageState, shelf: Shelf, tell: Tell) -> tuple[PageBlock, ...]:
    """Search, and what was found as pieces of the page."""
    import ridgeline

    path = file_of(state, shelf)
    began = time.perf_counter(), time.process_time()

    def watch(progress: Progress) -> bool:
        best = f", best {format_duration(progress.best_s, 4)}" if progress.best_s < float("inf") else ""
        what = f"{progress.priced:,} plans priced on {progress.what}" if progress.phase == "search" else progress.what
        return tell(what + best)

    if path is not None and is_scenario_file(path):
        answer = ridgeline.plan(str(path), watch=watch, objective=state["goal"], settings=state.settings)
    else:
        answer = ridgeline.plan(
            state["model"], on=machine_name(state), seq=int(state.amount("seq")), objective=state["goal"],
            global_batch=int(state.amount("batch")), settings=_options(state), watch=watch,
        )  # fmt: skip
    took = SearchTime(
        seconds=time.perf_counter() - began[0], cpu_seconds=time.process_time() - began[1], explain_seconds=0.0
    )
    report = answer.report(took)
    if isinstance(report, NoPlan):
        lines = TextLines(title="Searched", lines=answer.skipped)
        return (ProblemList(title="No plan fits", items=report.problems), lines)
    return tuple(plan_blocks(state, report))


def plan_blocks(state: PageState, report: PlanReport) -> Iterator[PageBlock]:
    """A found plan: its figures, the best of each kind, the front, and why not otherwise."""
    best = report.winner
    link = plan_state(state, best.scenario.plan)
    yield FigureRow(items=(FigureItem(name="plans priced", number=considered_number(report)), *headline(best)))
    yield GridTable(
        name="plans", title="The best plan of each kind", head=("plan", "step", "loses", "memory", "MFU", "$ a Mtoken"),
        rows=tuple(_plan_row(state, row.words, row.prediction, best) for row in report.kinds), text=("plan",),
        chosen=(best.plan_words,), caption="Every plan leads to its page, where it can be changed.",
    )  # fmt: skip
    drawn = frontier_chart(report)
    if drawn is not None:
        yield SvgPicture(name="frontier", title="What no other plan beats", svg=chart_svg(drawn, "The Pareto front"),
                         caption=frontier_caption(report))  # fmt: skip
    yield GridTable(
        name="why-not", title="Why not otherwise", head=("instead", "loses", "to", "that plan"),
        rows=tuple(_loss_row(state, loss) for loss in report.reasons.why.losses), text=("instead", "to", "that plan"),
        caption="The best plan that decides one thing otherwise, and the parts of the step it loses to.",
    )  # fmt: skip
    yield breakdown_chart(best, link)
    gains = tuple(f"{change.what}: {change.gain:+.1%} ({change.how or 'another machine'})" for change in report.next)
    yield TextLines(title="What would beat it", lines=gains)
    yield CodeText(name="scenario", title="As a scenario file", text=report.found.scenario_text, file="found.toml")
    yield TextLines(title="Assumed", lines=tuple(report.reasons.assumptions), is_folded=True)


def considered_number(report: PlanReport) -> ExplainedNumber:
    answer = report.found
    inputs = [given_input("that fit", f"{answer.feasible:,}", "the memory model"),
              given_input("complete", "yes" if answer.complete else "no, it was stopped", "the search")]  # fmt: skip
    return explain_number(answer.considered, "", "plans of the whole space that were priced", inputs,
                          f"search in {report.search.time.seconds:.2g} s", text=f"{answer.considered:,}")  # fmt: skip


def _plan_row(state: PageState, words: str, plan: Prediction, best: Prediction) -> tuple[TableCell, ...]:
    fullest = plan.memory.fullest
    used = memory_number("peak", plan.memory.peak_bytes, f"stage {fullest.rank}, at its {fullest.moment}")
    link = LinkCell(text=words, href=plan_state(state, plan.scenario.plan).url)
    return (link, step_number(plan), _lost(plan, best), used, mfu_number(plan), cost_number(plan) or "–")


def _lost(plan: Prediction, best: Prediction) -> ExplainedNumber:
    seconds = plan.step_time_s - best.step_time_s
    inputs = [number_input("this plan", step_number(plan)), number_input("the best", step_number(best))]
    text = format_duration(seconds) if seconds > 0 else "–"
    return explain_number(seconds, "s", "its step − the best plan's", inputs, "both predictions", text=text)


def _loss_row(state: PageState, loss: Loss) -> tuple[TableCell, ...]:
    link = LinkCell(text=loss.prediction.plan_words, href=plan_state(state, loss.prediction.scenario.plan).url)
    doubt = "; their intervals overlap" if loss.overlaps else ""
    return (loss.choice, _lost(loss.prediction, loss.winner), f"{loss.to}{doubt}", link)


def plan_state(state: PageState, plan: Plan) -> PageState:
    """The state of Predict that means a plan: choices where there are some, settings for the rest.

    >>> plan_state(PageState(page="plan"), Plan()).values["tp"]
    '1'
    """
    choice_keys = {
        choice.setting.removeprefix("plan."): key for key, choice in page_choices().items() if choice.setting
    }
    plain = {"tp": "1", "pp": "1", "cp": "1", "ep": "1", "microbatch": "1", "shard": "none", "recompute": "none"}
    table, further_settings = plan_table(plan), []
    for key, value in table.items():
        if key in choice_keys and not isinstance(value, Mapping):
            plain[choice_keys[key]] = str(value)
        elif key == "recompute" and isinstance(value, Mapping) and set(value) == {"kind"}:
            plain["recompute"] = str(value["kind"])
        elif key != "dp":
            further_settings.append(f"plan.{key}={_inline(value)}")
    other_settings = [setting for setting in state.settings if not setting.startswith("plan.")]
    settings = ";".join([*other_settings, *further_settings])
    return state.choose(**{**plain, "set": settings}).on_page("predict")


def _inline(value: object) -> str:
    """A value in one line, as a setting takes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_inline(part)}" for key, part in value.items()) + " }"
    line = toml_text({"value": value}).strip()
    return line.partition("=")[2].strip()
