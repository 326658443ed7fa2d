"""The page of designs: machines under budgets, those that no other beats, and the smallest for a target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ridgeline.core.errors import InputError, Problem
from ridgeline.design import ArchitectureAnswer, DesignAnswer, DesignPoint, Requirement
from ridgeline.report.pieces import Chart, ChartAxis, ChartDot, chart_svg, terminal_text
from ridgeline.web.blocks import (
    CodeText,
    FigureItem,
    FigureRow,
    GridTable,
    PageBlock,
    PageView,
    SvgPicture,
    TableCell,
    TaskButton,
    TextLines,
)
from ridgeline.web.controls import SCENARIO, state_controls
from ridgeline.web.figures import ExplainedNumber, FormulaInput, explain_number, given_input, quantity_words
from ridgeline.web.jobs import Tell
from ridgeline.web.scenarios import Shelf, file_of, machine_name
from ridgeline.web.state import PageState
from ridgeline.web.studies import is_study_file, study_file, study_table

UNITS = {
    "compute": "FLOP/s",
    "memory.bandwidth": "B/s",
    "memory.capacity": "B",
    "cache.capacity": "B",
    "scaleup.bandwidth": "B/s",
    "scaleout.bandwidth": "B/s",
    "host.bandwidth": "B/s",
    "scaleup.latency": "s",
    "scaleout.latency": "s",
}
MOST_ROWS = 24
ASKED = ("area", "power", "aim", "meet", *SCENARIO[:-6], "set")


def design_view(state: PageState, shelf: Shelf) -> PageView:
    """What will be searched: the machines of a study file, or machines around the one that is chosen."""
    path = file_of(state, shelf)
    is_file = path is not None and is_study_file(path)
    title = f"What does {path.name} find?" if path is not None and is_file else _title(state)
    blocks: list[PageBlock] = [
        TaskButton(task="design", label="Search designs", automatic=True,
                   note="Machines of 0.6 to 4 times what the chip has are priced by the workload of this page.")
    ]  # fmt: skip
    if not is_file:
        text = json.dumps(study_table(state, shelf), indent=1)
        blocks.append(CodeText(name="study", title="As a study file", text=text, file="study.json"))
    target = f" --meet '{state['meet']}'" if state["meet"] else ""
    return PageView(
        page="design", title=title, controls=() if is_file else state_controls(state, ASKED), blocks=tuple(blocks),
        answer="A design is dropped only by a bound that a priced one beats; what is left is certified.",
        command=f"ridgeline design {path.name if path is not None and is_file else 'study.json'}{target}",
        url=state.url,
        evidence="Area, power and price of a chip follow from its numbers by rules with dated sources.",
    )  # fmt: skip


def _title(state: PageState) -> str:
    return f"What should the chip after {state['machine']} be, for {state['model']} on {machine_name(state)}?"


def design_task(state: PageState, shelf: Shelf, tell: Tell) -> tuple[PageBlock, ...]:
    """Search the designs of a state, and what was found as pieces of the page."""
    import ridgeline

    def progress(done: int, total: int, what: str = "", best: str = "") -> bool:
        far = f"{done:,} of {total:,}" if total else ""
        return tell(" ".join(filter(None, [what or "pricing designs", far, best])))

    with study_file(state, shelf) as study:
        answer = ridgeline.design(study, meet=state["meet"], progress=progress)
    if isinstance(answer, ArchitectureAnswer):
        return (CodeText(name="report", title="What it finds", text=terminal_text(answer), file="models.txt"),)
    return tuple(design_blocks(answer))


def design_blocks(answer: DesignAnswer) -> Iterator[PageBlock]:
    """A searched space: its counts, its front, the best, the smallest for a target."""
    if answer.best is None:
        problem = Problem(path="study", given="no design within the budgets", expected="one that fits",
                          todo="raise area or power, or use more chips")  # fmt: skip
        raise InputError(problem)
    yield FigureRow(items=tuple(_figures(answer, answer.best)))
    yield _front_picture(answer)
    names = tuple(answer.best.choices)
    head = ("design", *names, "area", "power", "time", "cost")
    front = sorted(answer.frontier, key=lambda point: point.relative_cost)
    yield GridTable(
        name="front", title="What no other design beats", head=head, text=("design",), chosen=(answer.best.id,),
        rows=tuple(_point_row(answer, point, names) for point in (answer.reference, *front[:MOST_ROWS])),
        caption="Time and cost are of the whole mix, over the machine of today in the first line.",
    )  # fmt: skip
    if answer.requirement is not None:
        yield from _requirement_blocks(answer.requirement)
    yield CodeText(name="report", title="In full", text=terminal_text(answer), file="design.txt")
    yield TextLines(title="Notes", lines=answer.notes, is_folded=True)


def _figures(answer: DesignAnswer, best: DesignPoint) -> Iterator[FigureItem]:
    counts = answer.certificate
    fates = {
        "priced one by one": counts.priced_points,
        "over a budget": counts.over_budget,
        "dropped by a bound": counts.bounded_points,
        "without a plan that fits": counts.infeasible,
    }
    inputs = [given_input(name, f"{value:,}", "the search") for name, value in fates.items()]
    points = explain_number(counts.points, "", "designs of the space", inputs, "the study's ranges",
                            text=f"{counts.points:,}")  # fmt: skip
    yield FigureItem(name="designs", number=points)
    yield FigureItem(name="time, the best over today", number=_relative(answer, best, "time"))
    yield FigureItem(name="cost, the best over today", number=_relative(answer, best, "cost"))
    for name, value, unit in (("power of its chip", best.power_w, "W"), ("its chip", best.price_usd, "USD")):
        number = explain_number(value, unit, "bottom up from its numbers", _choices(best), "rules with dated sources")
        yield FigureItem(name=name, number=number)


def _choices(point: DesignPoint) -> list[FormulaInput]:
    return [given_input(name, quantity_words(value, UNITS.get(name, "")), "of this design")
            for name, value in point.choices.items()]  # fmt: skip


def _relative(answer: DesignAnswer, point: DesignPoint, what: str) -> ExplainedNumber:
    value = point.relative_time if what == "time" else point.relative_cost
    formula = f"weighted geometric mean over workloads of {what} / {what} of today's machine"
    inputs = [*_choices(point), *(given_input(work.workload, f"{work.plan}; {work.limiter}", "its best plan")
                                  for work in point.workloads)]  # fmt: skip
    return explain_number(value, "times", formula, inputs, f"study {answer.study}")


def _point_row(answer: DesignAnswer, point: DesignPoint, names: tuple[str, ...]) -> tuple[TableCell, ...]:
    def sized_number(value: float, unit: str, formula: str) -> ExplainedNumber:
        text = f"{value:,.0f} mm²" if not unit else ""
        return explain_number(value, unit, formula, _choices(point), "rules with dated sources", text=text)

    is_today = point.id == answer.reference.id
    cells = [_choice_cell(point.choices, name) for name in names]
    area, power = (
        sized_number(point.area_mm2, "", "all its dies, bottom up"),
        sized_number(point.power_w, "W", "bottom up"),
    )
    name = f"{point.id}, today" if is_today and point.id != "today" else point.id
    return (name, *cells, area, power, _relative(answer, point, "time"), _relative(answer, point, "cost"))


def _choice_cell(choices: Mapping[str, float], name: str) -> TableCell:
    if name not in choices:
        return "–"
    inputs = [given_input("range", "the study", "the study")]
    return explain_number(choices[name], UNITS.get(name, ""), "a value of the space", inputs, "the study's ranges")


def _front_picture(answer: DesignAnswer) -> SvgPicture:
    dots = [
        ChartDot(x=point.relative_cost, y=point.relative_time,
                 kind="best" if answer.best is not None and point.id == answer.best.id else "dot",
                 name="best" if answer.best is not None and point.id == answer.best.id else "",
                 note=f"{point.id}: " + ", ".join(f"{name} {quantity_words(value, UNITS.get(name, ''))}"
                                                  for name, value in point.choices.items()))
        for point in answer.frontier
    ]  # fmt: skip
    dots.append(ChartDot(x=1.0, y=1.0, note="the machine of today", kind="weak", name="today"))
    drawn = Chart(
        across=ChartAxis(name="cost of the work, over today's", form="{:.2g}".format),
        up=ChartAxis(name="time of the work, over today's", form="{:.2g}".format), dots=dots,
        legend=(("best", "best"), ("dot", "no other beats it"), ("weak", "today")),
    )  # fmt: skip
    return SvgPicture(name="designs", title="Time against money", svg=chart_svg(drawn, "Designs"),
                      caption=f"{len(answer.frontier)} designs that no other beats in both.")  # fmt: skip


def _requirement_blocks(found: Requirement) -> Iterator[PageBlock]:
    if not found.feasible:
        yield TextLines(title="The target cannot be met in this space", lines=(found.reason or "no design meets it",))
        return
    rows: list[tuple[TableCell, ...]] = [
        (name, _choice_cell(found.choices, name), found.binds.get(name, "slack")) for name in found.choices
    ]
    yield GridTable(name="requirement", title="The smallest machine that meets the target",
                    head=("number", "at least", "what breaks with less"), rows=tuple(rows),
                    text=("number", "what breaks with less"))  # fmt: skip
