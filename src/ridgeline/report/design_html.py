"""Turn the answers of a design study into pages: the frontier as a chart, its points as a table, and the proof."""

from __future__ import annotations

from ridgeline.core.units import format_duration, signed_share
from ridgeline.design import ArchitectureAnswer, DesignAnswer, DesignPoint
from ridgeline.report import html
from ridgeline.report.chart import Chart, ChartAxis, ChartDot, Curve, chart_figure
from ridgeline.report.design import (
    COSTS,
    MODEL_HEAD,
    architecture_cells,
    certificate_words,
    choice_words,
    contest_words,
    cost_cells,
)
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence


def design_page(answer: DesignAnswer, command: str = "") -> str:
    """The page of a study of machines."""
    names = list(answer.parameters)
    rows = [
        (point.id, *cost_cells(point), *(choice_words(name, _choice(answer, point, name)) for name in names))
        for point in (answer.reference, *answer.frontier)
    ]
    chosen = [place for place, row in enumerate(rows) if answer.best is not None and row[0] == answer.best.id]
    body = "".join(
        (
            html.facts(_facts(answer)),
            frontier_figure(answer),
            "<h2>Machines that no other beats</h2>",
            html.table(("machine", *COSTS, *names), rows, text=(0,), chosen=chosen),
            _workload_section(answer),
            _requirement_section(answer),
            f"<h2>Which of two?</h2><p>{html.inline_code(contest_words(answer.contest))}</p>" if answer.contest else "",
            html.section(
                "Derived numbers of the new chip",
                ("field", "value", "unit", "rule", "source"),
                [(row.field, f"{row.value:.4g}", row.unit, row.rule, row.source) for row in answer.derived_fields],
                text=(0, 2, 3, 4),
            ),
            html.list_items("Notes", answer.notes),
        )
    )
    return page_document(_head(answer, command), body, script=html.page_part("plan.js"))


def _choice(answer: DesignAnswer, point: DesignPoint, name: str) -> float:
    return point.choices.get(name, float(answer.parameters[name]["today"]))


def _facts(answer: DesignAnswer) -> list[tuple[str, str]]:
    best = answer.best
    figures = [
        (f"{answer.certificate.points:,}", "machines looked at"),
        (str(len(answer.frontier)), "that no other beats"),
    ]
    if best is not None:
        figures += [
            (f"x {best.relative_cost:.3f}", "cost of the same work, at best"),
            (f"x {best.relative_time:.3f}", "its time"),
        ]
    return figures


def frontier_figure(answer: DesignAnswer) -> str:
    """The frontier as a chart; nothing where there is none."""
    if not answer.frontier:
        return ""
    dots = [
        ChartDot(
            x=point.relative_time,
            y=point.relative_cost,
            note=f"{point.id}: {', '.join(cost_cells(point))}",
            kind="best" if answer.best is not None and point.id == answer.best.id else "dot",
            name=point.id if point in (answer.best, answer.frontier[0]) else "",
        )
        for point in answer.frontier
    ]
    today = answer.reference
    dots.append(ChartDot(x=today.relative_time, y=today.relative_cost, note="today", kind="weak", name="today"))
    line = Curve(points=[(point.relative_time, point.relative_cost) for point in answer.frontier])
    chart = Chart(
        across=ChartAxis(name="time of the mix over today's"),
        up=ChartAxis(name="cost of the same work over today's"),
        dots=dots,
        curves=(line,) if len(answer.frontier) > 1 else (),
    )
    return chart_figure(chart, "Machines within the budgets that no other beats in both time and cost.")


def _workload_section(answer: DesignAnswer) -> str:
    rows = [
        (
            work.workload,
            point.id,
            format_duration(work.seconds),
            f"{work.usd_per_million_tokens:.3g}",
            work.limiter,
            work.plan,
        )
        for point in filter(None, (answer.reference, answer.best))
        for work in point.workloads
    ]
    return html.section(
        "Workloads", ("workload", "machine", "time", "USD/Mtok", "limited by", "plan"), rows, text=(0, 1, 4, 5)
    )


def _requirement_section(answer: DesignAnswer) -> str:
    requirement = answer.requirement
    if requirement is None:
        return ""
    rows = [(name, choice_words(name, value), requirement.binds[name]) for name, value in requirement.choices.items()]
    slacks = [
        (
            entry.name,
            f"{entry.value:.4g} {entry.unit}",
            signed_share(entry.slack),
            html.objective_verdict(met=entry.slack >= 0),
        )
        for entry in requirement.limits
    ]
    return html.section(
        "Smallest machine that keeps the limits", ("number", "value", "set by"), rows, text=(0, 2)
    ) + html.section("Limits and their room", ("limit", "value", "slack", ""), slacks, text=(0, 3))


def _head(answer: DesignAnswer, command: str) -> PageHead:
    best = answer.best
    result = (
        "No machine of the study is within its budgets and fits its workloads."
        if best is None
        else f"{best.id}: the same work at x {best.relative_cost:.2f} of today's cost and "
        f"x {best.relative_time:.2f} of its time, "
        f"{best.area_mm2:.0f} mm2 and {best.power_w:.0f} W a chip."
    )
    return PageHead(
        verb="design",
        question=answer.study,
        answer=result,
        certainty=f"{certificate_words(answer)}. Times are predictions of chips that nobody has measured.",
        subject=(
            ("Objective", answer.objective),
            ("Budgets", ", ".join(f"{k} {v:g}" for k, v in answer.budgets.items())),
        ),
        evidence=prediction_evidence(),
        command=command,
    )


def architectures_page(answer: ArchitectureAnswer, command: str = "") -> str:
    """The page of a search of models."""
    dots = [
        ChartDot(
            x=model.train_usd,
            y=model.usd_per_million_tokens or model.memory_bytes,
            note=model.name,
            kind="best" if model is answer.best else "dot" if model.on_frontier else "weak",
        )
        for model in answer.candidates
    ]
    chart = Chart(
        across=ChartAxis(name="dollars of training"), up=ChartAxis(name="dollars of a million tokens served"), dots=dots
    )
    rows = [(model.name, *architecture_cells(model), "; ".join(model.quality_notes)) for model in answer.candidates]
    basin = [(name, f"{ends[0]:g}", f"{ends[1]:g}") for name, ends in answer.basin.ranges.items()]
    body = "".join(
        (
            chart_figure(chart, "Models of the same predicted loss.") if dots else "",
            html.section("Models", ("model", *MODEL_HEAD, "quality"), rows, text=(0, len(MODEL_HEAD) + 1)),
            html.section("Flat basin", ("choice", "from", "to"), basin, text=(0,)),
            html.section(
                "Refused", ("model", "why"), [(entry.name, entry.reason) for entry in answer.refusals], text=(0, 1)
            ),
            html.list_items("Notes", answer.notes),
        )
    )
    best = answer.best
    head = PageHead(
        verb="design",
        question=answer.study,
        answer="No model of the study can be ranked."
        if best is None
        else f"{best.name}: {best.total_usd:,.0f} USD over training and serving.",
        certainty=f"Loss {answer.target_loss:.3f} by {answer.law['id']}, {answer.loss_interval[0]:.3f} to "
        f"{answer.loss_interval[1]:.3f}: {answer.law['source']}.",
        subject=(("Law", answer.law["form"]), ("Support", answer.law["support"])),
        evidence=prediction_evidence(),
        command=command,
    )
    return page_document(head, body, script=html.page_part("plan.js"))
