"""Turn a result into the markup that a notebook shows: its terminal page in colours, or a picture of what has none."""

from __future__ import annotations

from functools import singledispatch
from io import StringIO

from rich.console import Console

from ridgeline.design import DesignAnswer
from ridgeline.report.design_html import frontier_figure
from ridgeline.report.html import escape_text
from ridgeline.report.results import draw
from ridgeline.search import Recommendation, SearchTime
from ridgeline.trace import Timeline

WIDE = 150  # columns
MOST_SPANS, LANE, WIDTH = 1500, 16, 900  # spans drawn; pixels of a lane and of a timeline
FRAME = '<pre style="line-height:1.25;font-family:monospace;font-size:12px;overflow-x:auto">{code}</pre>'
COLOURS = ("#2f6fb2", "#c05410", "#2e7d4f", "#8a94a0", "#7a4fb2", "#b23a5b")


@singledispatch
def notebook_markup(value: object) -> str:
    """The terminal page of a result as markup; texts of strangers are escaped."""
    console = Console(record=True, width=WIDE, file=StringIO(), force_jupyter=False)
    draw(value, console)
    return console.export_html(inline_styles=True, code_format=FRAME)


@notebook_markup.register
def _(value: Recommendation) -> str:
    """The winner and the best plans."""
    report = value.report(SearchTime(seconds=0.0, cpu_seconds=0.0, explain_seconds=0.0))
    if value.chosen is None:
        reasons = "".join(f"<li>{escape_text(problem)}</li>" for problem in value.problems)
        return f"<p>No plan was found.</p><ul>{reasons}</ul>"
    return str(notebook_markup.dispatch(object)(report))


@notebook_markup.register
def _(value: DesignAnswer) -> str:
    """The frontier as a chart, and the page below it."""
    return f"{frontier_figure(value)}{notebook_markup.dispatch(object)(value)}"


@notebook_markup.register
def _(value: Timeline) -> str:
    """Spans of a timeline as bars, a lane for every process and stream; the longest where there are many."""
    if not len(value):
        return "<p>An empty timeline.</p>"
    spans_ns = value.end_ns - value.start_ns
    longest = spans_ns.argsort()[::-1][:MOST_SPANS].tolist()
    streams = sorted({(int(value.process[row]), int(value.stream[row])) for row in longest})
    lanes = {stream: place for place, stream in enumerate(streams)}
    begin = int(value.start_ns.min())
    scale = WIDTH / max(int(value.end_ns.max()) - begin, 1)
    bars = []
    for row in longest:
        x, width = (int(value.start_ns[row]) - begin) * scale, int(spans_ns[row]) * scale
        y = lanes[int(value.process[row]), int(value.stream[row])] * LANE
        colour = COLOURS[int(value.class_[row]) % len(COLOURS)]
        bars.append(f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.3):.2f}" height="{LANE - 3}" fill="{colour}"/>')
    tall = len(lanes) * LANE
    words = f"{len(value):,} spans on {len(lanes)} streams, {value.span_s:.6g} s"
    drawing = f'<svg width="{WIDTH}" height="{tall}" role="img" aria-label="{words}">{"".join(bars)}</svg>'
    return f"<figure>{drawing}<figcaption>{words}</figcaption></figure>"
