"""The page that predicts: model, machine, workload and plan with sliders, and where the time and the memory go."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import format_duration
from ridgeline.hardware.what_if import system_title
from ridgeline.plan.scenario import Scenario
from ridgeline.report.pieces import interval_words, prediction_evidence, roofline_svg
from ridgeline.sim import Prediction
from ridgeline.sim.phase_prediction import PhasePrediction
from ridgeline.sim.roofline import PlacedOp
from ridgeline.web.blocks import (
    BarChart,
    BarLine,
    FigureItem,
    FigureRow,
    GridTable,
    LinkCell,
    PageBlock,
    PageView,
    ProblemList,
    StackChart,
    StackLine,
    SvgPicture,
    TableCell,
    TextLines,
)
from ridgeline.web.controls import state_controls
from ridgeline.web.explained_step import (
    Step,
    capacity_number,
    cost_number,
    energy_number,
    interval_number,
    memory_number,
    mfu_number,
    part_number,
    speed_number,
    step_number,
    step_source,
)
from ridgeline.web.figures import ExplainedNumber, explain_number, given_input, number_input
from ridgeline.web.scenarios import Shelf, chip_settings, file_of, scenario_file, state_command, state_scenario
from ridgeline.web.state import PageState

ROOFLINE_OPS = 12  # of the table below the chart
MEMORY_COLOURS = {"weights": "m1", "gradients": "m2", "optimizer": "m3", "activations": "m4", "logits": "m5",
                  "workspace": "m6", "buffers": "m6", "overhead": "m7", "graphs": "m6", "runtime": "m7",
                  "cache asked": "m4"}  # fmt: skip


def predict_view(state: PageState, shelf: Shelf) -> PageView:
    """The prediction of a state; where there is none, every reason."""
    import ridgeline

    try:
        scenario = state_scenario(state, shelf)
        step = ridgeline.predict(scenario)
    except InputError as wrong:
        return impossible_view(state, wrong)
    if isinstance(step, ridgeline.Impossible):
        return impossible_view(state, InputError(step.reasons))
    if not isinstance(step, (Prediction, PhasePrediction)):
        from ridgeline.web.views.serving import serving_result

        return serving_result(state, step)
    return PageView(
        page=state.page,
        title=_title(scenario),
        answer=_answer(step),
        certainty=interval_words(step.interval),
        tone="" if step.fits else "bad",
        controls=state_controls(state),
        blocks=tuple(_blocks(state, shelf, step)),
        command=state_command(state),
        evidence=prediction_evidence(),
        url=state.url,
    )


def impossible_view(state: PageState, wrong: InputError, *, title: str = "This cannot be predicted") -> PageView:
    """The page of a state that means nothing, or nothing that can run."""
    return PageView(
        page=state.page, title=title, answer="Every reason is below, with what to do.", tone="bad",
        controls=state_controls(state), blocks=(ProblemList(title="Reasons", items=reasons_of(wrong)),), url=state.url,
    )  # fmt: skip


def reasons_of(wrong: InputError) -> tuple[Problem, ...]:
    """The problems of an error, at least one."""
    return wrong.problems or (Problem(path="", given=str(wrong), expected="an input that can be used"),)


def _title(scenario: Scenario) -> str:
    work = scenario.workload
    doing = {"train": "train", "prefill": "read prompts with", "decode": "decode with"}[work.kind]
    return f"How long does it take to {doing} {scenario.model.id} on {system_title(scenario.system)}?"


def _answer(step: Step) -> str:
    parts = sorted(step.bounds.items(), key=lambda entry: -entry[1])
    limit, seconds = parts[0]
    verdict = "" if step.fits else "It does not fit in memory; if it did: "
    return (
        f"{verdict}{format_duration(step.step_time_s, 4)} a step; {seconds / step.step_time_s:.0%} of it is limited by "
        f"{LIMITS[limit]}."
    )


LIMITS = {"compute": "compute", "memory": "memory bandwidth", "network": "the network", "host": "host and waiting"}


def _blocks(state: PageState, shelf: Shelf, step: Step) -> Iterator[PageBlock]:
    yield FigureRow(items=tuple(headline(step)))
    yield breakdown_chart(step, state)
    yield memory_chart(step)
    if file_of(state, shelf) is None:
        yield from _roofline(state)
    if isinstance(step, PhasePrediction) and step.curve:
        yield _curve(state, step)
    yield scenario_file(state, shelf)
    yield TextLines(title="Assumed", lines=step.assumptions, is_folded=True)


def headline(step: Step) -> Iterator[FigureItem]:
    """The large figures of a step."""
    yield FigureItem(name="a step", number=step_number(step))
    yield FigureItem(name=f"with {step.interval.coverage:.0%} probability", number=interval_number(step))
    if isinstance(step, Prediction):
        yield FigureItem(name="MFU", number=mfu_number(step))
        yield FigureItem(name="tokens/s a chip", number=speed_number(step))
    else:
        yield FigureItem(name="tokens/s a user", number=speed_number(step, user=True))
        yield FigureItem(name="tokens/s a chip", number=speed_number(step))
    yield FigureItem(name="memory left" if step.fits else "memory missing", number=headroom_number(step),
                     tone="good" if step.fits else "bad")  # fmt: skip
    cost, energy = cost_number(step), energy_number(step)
    if cost is not None:
        yield FigureItem(name="a million tokens", number=cost)
    elif energy is not None:
        yield FigureItem(name="energy a step", number=energy)


def headroom_number(step: Step) -> ExplainedNumber:
    """Bytes that are free on the fullest chip; what is missing where it does not fit."""
    capacity = capacity_number(step)
    if isinstance(step, Prediction):
        used, free_bytes = step.memory.peak_bytes, step.memory.headroom_bytes
        used_memory = memory_number("peak", used, f"fullest rank, at its {step.memory.fullest.moment}")
    else:
        need = step.cached_tokens * step.memory.kv_bytes_per_token
        free_bytes = step.memory.kv_bytes - need
        used_memory = memory_number("cache", need, f"{step.cached_tokens:,} cached tokens")
    return explain_number(
        abs(free_bytes), "GiB", "usable memory of a chip less the peak of the fullest one",
        [number_input("capacity", capacity), number_input("used", used_memory)], "computed from the plan",
    )  # fmt: skip


def breakdown_chart(step: Step, state: PageState) -> BarChart:
    """Where the time goes, part after part."""
    rows = tuple(
        BarLine(name=part.name, number=part_number(step, part.name, _part_href(state, part.name)), colour=part.bound,
                meaning=part.meaning)
        for part in step.breakdown if part.seconds > 0
    )  # fmt: skip
    return BarChart(
        name="breakdown", title="Where the time goes", rows=rows, total=step_number(step),
        caption="Each part begins where the last one ended; colours say what limits it. Click a number to open it.",
    )  # fmt: skip


def _part_href(state: PageState, part: str) -> str:
    return state.on_page("sense").url if part else ""


def memory_chart(step: Step) -> StackChart:
    """The memory of every pipeline stage at its peak, and of one chip."""
    rows = []
    if isinstance(step, Prediction):
        for stage in step.memory.stages:
            where = f"stage {stage.rank}, {stage.in_flight} microbatches in flight, at its {stage.moment}"
            parts = tuple(_memory_part(kind, size, where) for kind, size in stage.bytes_by_kind.items() if size > 0)
            rows.append(_stack(f"stage {stage.rank}", parts, stage.peak_bytes, where))
    else:
        memory, where = step.memory, "one chip"
        cache = step.cached_tokens * memory.kv_bytes_per_token
        sizes = {"weights": memory.weights, "activations": memory.activations, "graphs": memory.graphs,
                 "runtime": memory.runtime, "cache asked": cache}  # fmt: skip
        parts = tuple(_memory_part(kind, size, where) for kind, size in sizes.items() if size > 0)
        rows.append(_stack("a chip", parts, sum(sizes.values()), where))
    most_stages = 16
    note = f" The first {most_stages} of {len(rows)} stages." if len(rows) > most_stages else ""
    return StackChart(
        name="memory", title="Memory of a chip", rows=tuple(rows[:most_stages]), limit=capacity_number(step),
        caption=f"What each stage holds at its peak. The line is the memory of a chip.{note}",
    )  # fmt: skip


def _memory_part(kind: str, size: float, where: str) -> BarLine:
    return BarLine(name=kind, number=memory_number(kind, size, where), colour=MEMORY_COLOURS.get(kind, "m7"))


def _stack(name: str, parts: tuple[BarLine, ...], total: float, where: str) -> StackLine:
    inputs = [number_input(part.name, part.number) for part in parts]
    number = explain_number(total, "GiB", "sum of all kinds at the peak", inputs, f"computed for {where}")
    return StackLine(name=name, parts=parts, total=number)


def _roofline(state: PageState) -> Iterator[PageBlock]:
    phase = state["kind"]
    batch = state["microbatch"] if phase == "train" else state["batch"]
    try:
        sizes = int(state.amount("seq")), int(float(batch))
        settings = tuple(chip_settings(state))
        yield from roofline_blocks(state["model"], state["machine"], phase, sizes, state["engine"], settings)
    except (InputError, ValueError):  # what is wrong with the scenario was said before
        return


@lru_cache(maxsize=128)
def roofline_blocks(
    model: str, machine: str, phase: Literal["train", "prefill", "decode"], sizes: tuple[int, int], engine: str,
    settings: tuple[str, ...],
) -> tuple[PageBlock, ...]:  # fmt: skip
    """The roofline of a model on a chip, and its longest kernels; remembered, for a plan does not change them."""
    import ridgeline

    seq, batch = sizes
    drawn = ridgeline.roofline(model, machine, phase=phase, seq=seq, batch=batch, engine=engine, settings=settings)
    picture = SvgPicture(
        name="roofline", title="Every kernel under the roofs of the chip", svg=roofline_svg(drawn),
        caption="One chip as if it held the whole model. Solid: data sheet. Dashed: measured. Area: share of the time.",
    )  # fmt: skip
    longest = sorted(drawn.placed_ops, key=lambda spot: -spot.share)[:ROOFLINE_OPS]
    rows = tuple(_kernel_row(spot, "; ".join(drawn.notes)) for spot in longest)
    head = ("op", "time", "share", "of its roof", "limit", "evidence")
    table = GridTable(
        name="kernels", title="The longest kernels", head=head, rows=rows, text=("op", "limit", "evidence")
    )
    return (picture, table)


def _kernel_row(spot: PlacedOp, notes: str) -> tuple[TableCell, ...]:
    op = spot.op
    inputs = (
        given_input("runs", f"{op.count:,.0f}", "the model's layers"),
        given_input("flops", f"{op.flops:.4g}", "the shape of the op"),
        given_input("bytes", f"{op.moved_bytes:.4g}", "the shape of the op"),
    )
    source = f"{op.evidence.label}; notes: {notes}"
    seconds = explain_number(op.seconds, "s", "runs × seconds of one kernel of this shape", inputs, source)
    share = explain_number(spot.share, "share", "its seconds / seconds of all kernels", inputs, source)
    roof = explain_number(spot.roof, "share", "seconds that the roof allows / seconds it takes", inputs, source)
    return (f"{op.label} ({op.phase})", seconds, share, roof, op.bound, op.evidence.label)


def _curve(state: PageState, step: PhasePrediction) -> GridTable:
    """Other batches of the same context."""
    source = step_source(step)
    rows: list[tuple[str | ExplainedNumber | LinkCell, ...]] = []
    for point in step.curve:
        batch = str(point.batch)
        batch_inputs = [given_input("sequences", batch, "the curve"), given_input("context", f"{state['seq']} tokens")]
        seconds = explain_number(point.step_time_s, "s", "the same step with another batch", batch_inputs, source)
        user = explain_number(point.tokens_per_s_per_user, "", "1 / step time", batch_inputs, source)
        chip = explain_number(point.tokens_per_s_per_chip, "", "sequences / step time / chips", batch_inputs, source)
        rows.append((LinkCell(text=batch, href=state.choose(batch=batch).url), seconds, user, chip))
    return GridTable(
        name="curve", title="Other batches", head=("batch", "step", "tokens/s a user", "tokens/s a chip"),
        rows=tuple(rows), chosen=(state["batch"],),
    )  # fmt: skip
