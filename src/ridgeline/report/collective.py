"""Draw what `ridgeline collective` answers: times beside bounds, four prices, simulations, files, the library.

The picture of a schedule has rounds from left to right and links from top to bottom. A cell is as dark as the busiest
is full of bytes; large schedules have several rounds or links a cell. PNG and SVG are the picture alone, and with a
selector by size its chart below; HTML is a page with figures and tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import log10
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.comm import (
    Algorithm,
    AlgorithmList,
    CollectivePrices,
    CollectiveTime,
    Graph,
    LayerPrice,
    SizeRange,
    shortest_routes,
)
from ridgeline.comm.formats import CollectiveFile
from ridgeline.comm.libraries import LibraryChoice
from ridgeline.comm.simulation import Contention, Method
from ridgeline.core.arrays import Array
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_quantity
from ridgeline.hardware.what_if import system_title
from ridgeline.report import html
from ridgeline.report.cells import DASH, Dot, PlotAxis, blocks, clean, facts, header_table, list_lines, percent, scatter
from ridgeline.report.drawing import INK, PAPER, Canvas, standalone_svg
from ridgeline.runtime import CollectiveRun

METHODS: dict[Method, str] = {
    "exact": "max-min rates at every start and end",
    "windows": "max-min rates in windows of a tenth of a message",
    "rounds": "by the bytes of a round on a link",
}
LAYERS = {"ideal": "on ideal links", "library": "by the library's tuner", "benchmark": "in a benchmark",
          "step": "in a step"}  # fmt: skip
HEAT = " ░▒▓█"  # how many of a cell's rounds a link is used in
HEAT_LINKS, HEAT_ROUNDS = 16, 64  # cells of the picture


def draw_collective(time: CollectiveTime, console: Console) -> None:
    """Print the time beside its bound, the four prices, the busiest links and the picture of the schedule."""
    algorithm, bound, built = time.algorithm, time.bound, time.synthesis_seconds
    size, seconds = format_quantity(time.size_bytes, "B", 4), format_quantity(time.seconds, "s", 4)
    title = f"{time.collective} of {size} on {time.graph.name}: {seconds} on ideal links"
    rows = facts(
        ("algorithm", f"{algorithm.name}, {algorithm.rounds} rounds, {algorithm.step_count:,} steps"),
        ("bound", f"{format_quantity(bound.seconds, 's', 4)} by {bound.by}"),
        ("chunked bound", format_quantity(time.chunked_bound_seconds, "s", 4) if time.chunked_bound_seconds else DASH),
        ("over the bound", f"{time.ratio_to_bound:.3f}"),
        ("algbw, busbw", " ".join(format_quantity(rate, "B/s", 4) for rate in (time.algbw, time.busbw))),
        ("verified", "yes" if time.verification.ok else "NO"),
        ("synthesized in", "" if built is None else format_quantity(built, "s", 3)),
    )
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold")],
            [rows],
            list_lines("not verified", [str(problem) for problem in time.verification.problems]),
            [] if time.prices is None else [_prices(time.prices)],
            [] if time.contention is None else [facts(*_simulation(time.contention))],
            [_sizes(time.by_size)] if time.by_size else [],
            [Text(line) for line in crossing_lines(time.by_size)] if time.by_size else [],
            [_links(time)],
            _picture(algorithm, time.graph),
        )
    )


def _prices(prices: CollectivePrices) -> Table | Text:
    """The four layers side by side: seconds, how much more than the layer before, and what the layer adds."""
    if not (prices.library.seconds or prices.benchmark.seconds or prices.step.seconds):
        return clean(f"priced on ideal links only: {prices.step.reason}")
    table = header_table(("what it takes", "", "more", "by", "counts besides"), right=("", "more"))
    before: float | None = None
    for field in fields(prices):
        price: LayerPrice = getattr(prices, field.name)
        if price.seconds is None:
            table.add_row(LAYERS[field.name], DASH, "", "", clean(price.reason))
            continue
        more = "" if before is None else f"{'-' if price.seconds < before else '+'}{_s(abs(price.seconds - before))}"
        counts = clean(f"{price.adds} ({price.source})")
        table.add_row(LAYERS[field.name], _s(price.seconds), more, clean(price.algorithm), counts)
        before = price.seconds
    return table


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s", 3)


def _simulation(run: Contention) -> list[tuple[str, str]]:
    """Lines that tell what contention costs."""
    link, over = run.slowest_link, f"x {run.over_alpha_beta:.3f} of the time above"
    how = f"paths: {run.conditions.paths}; {METHODS[run.simulated.method]}"
    lines = [("simulated", f"{format_quantity(run.seconds, 's', 4)}, {over}; {how}")]
    alone_s = run.alone_seconds
    if alone_s != run.seconds:
        more = percent(run.seconds / alone_s - 1)
        lines.append(("by itself", f"{format_quantity(alone_s, 's', 4)}; stragglers and others add {more}"))
    seeds = run.seeds
    if seeds is not None:
        times = (seeds.median, seeds.p90, seeds.max, seeds.min)
        median, p90, worst, best = (format_quantity(seconds, "s", 4) for seconds in times)
        lines.append((f"over {seeds.count} seeds", f"median {median}, p90 {p90}, worst {worst}, best {best}"))
    busy = f"{format_quantity(link.bytes, 'B', 3)}, {percent(link.busy)} of the time"
    lines.append(("slowest link", f"{link.source} to {link.target}: {busy}"))
    for job in run.beside:
        seconds, by_itself = (format_quantity(part, "s", 4) for part in (job.seconds, job.alone_seconds))
        lines.append((f"beside: {job.collective}", f"{seconds}, {by_itself} by itself"))
    return lines


def _sizes(ranges: Sequence[SizeRange]) -> Table:
    table = header_table(("fastest", "from", "to", "takes", "bound"), right=("from", "to", "takes", "bound"))
    for row in ranges:
        sizes = (format_quantity(size, "B", 3) for size in (row.min_bytes, row.max_bytes))
        times = (
            " to ".join(format_quantity(seconds, "s", 3) for seconds in ends)
            for ends in ((row.min_seconds, row.max_seconds), (row.min_bound_seconds, row.max_bound_seconds))
        )
        table.add_row(f"{row.algorithm}, {row.chunks} chunks", *sizes, *times)
    return table


def _links(time: CollectiveTime) -> Table:
    right = ("bytes", "of the time")
    rows = (
        (f"{link.source} to {link.target}", format_quantity(link.bytes, "B", 3), percent(link.busy))
        for link in time.busiest
    )
    return header_table(("busiest link", *right), rows, right=right)


def _picture(algorithm: Algorithm, graph: Graph) -> list[Text]:
    """Rounds from left to right, links from top to bottom: how often each is used."""
    if not len(algorithm.steps) or not graph.links:
        return []
    shares = heat(algorithm, graph, HEAT_LINKS, HEAT_ROUNDS, by_bytes=False)
    level = np.ceil(shares * (len(HEAT) - 1)).astype(int)
    lines = [Text("rounds from left to right, links from top to bottom", style="dim")]
    return lines + [Text("".join(HEAT[cell] for cell in row)) for row in level]


def draw_verification(file: CollectiveFile, console: Console) -> None:
    """Print whether a file's algorithm is right, or what is wrong with it; the settings of a library's file."""
    if file.rule_texts:
        verdict = "some rules have no effect" if file.warnings else "every rule is one that the library takes"
        rules = list_lines(f"{file.format}: {verdict}", list(file.rule_texts))
        console.print(blocks(rules, list_lines("warnings", list(file.warnings))))
        return
    proven = "no race, no deadlock" if file.format == "ridgeline" else "no deadlock, in every order tried"
    verdict = f"every output right, {proven}" if file.verified else "NOT verified"
    what = f"{file.algorithm_name}, {file.collective} on {file.ranks} ranks, {file.steps:,} steps"
    lines = [f"{problem.path}: {problem.given}, expected {problem.expected}" for problem in file.problems]
    console.print(blocks([clean(f"{file.format}: {what}: {verdict}")], list_lines("problems", lines)))


def draw_library(library: AlgorithmList, console: Console) -> None:
    """Print algorithms down, collectives across, times where there is an algorithm."""
    rows = library.algorithms
    names, kinds = (list(dict.fromkeys(getattr(row, key) for row in rows)) for key in ("algorithm", "collective"))
    cells = {(row.algorithm, row.collective): row for row in rows}
    table = header_table(("algorithm", *kinds), right=kinds)
    for name in names:
        texts = []
        for kind in kinds:
            cell = cells.get((name, kind))
            verdict = "" if cell is None or cell.verified else " WRONG"
            texts.append(DASH if cell is None else format_quantity(cell.seconds, "s", 3) + verdict)
        table.add_row(name, *texts)
    wrong = sum(not row.verified for row in rows)
    verdict = "every output right" if not wrong else f"{wrong} NOT verified"
    size = format_quantity(library.size_bytes, "B", 4)
    title = f"{size} on {library.topology}, {library.ranks} ranks: {len(rows)} algorithms, {verdict}"
    console.print(blocks([Text.assemble(clean(title), style="bold")], [table]))


# -- collective run ---------------------------------------------------------------------------------------------------


COLUMNS = ("size", "time", "algbw", "busbw", "bound", "over it", "backend's own", "busbw of it")


def draw_collective_run(run: CollectiveRun, console: Console) -> None:
    """Print the table of sizes."""
    algorithm = run.algorithm
    title = f"{run.collective} by {algorithm.name} on {algorithm.ranks} ranks, {run.backend}"
    rows = (
        (format_quantity(row.size_bytes, "B", 3), _s(row.seconds), _rate(row.algbw), _rate(row.busbw),
         _s(row.bound_seconds), f"{row.ratio_to_bound:.1f}", _s(row.own_seconds), _rate(row.own_busbw))
        for row in run.rows
    )  # fmt: skip
    table = header_table(COLUMNS, rows, right=COLUMNS)
    figures = facts(
        ("steps", f"{algorithm.step_count:,} in {algorithm.rounds} rounds"),
        ("one send", f"{format_quantity(run.latency_s, 's', 3)}, {format_quantity(run.bytes_per_s, 'B/s', 3)}"),
        ("outputs", "right, bit for bit" if run.correct else "WRONG"),
    )
    wrong = [f"{format_quantity(row.size_bytes, 'B', 3)}: {text}" for row in run.rows for text in row.wrong]
    console.print(blocks([clean(title)], [figures], list_lines("wrong outputs", wrong), [table]))


# -- library choice ---------------------------------------------------------------------------------------------------


def draw_library_choice(choice: LibraryChoice, console: Console) -> None:
    """Print what is taken and why, the table of options, and a sweep over sizes."""
    size, chosen, measured = format_quantity(choice.size_bytes, "B", 4), choice.chosen, choice.measured
    where = f"{choice.collective} of {size} on {system_title(choice.system)}"
    expected = ""
    if measured is not None:
        expected = f"{_s(measured.seconds)}, nine of ten {_s(measured.low)} to {_s(measured.high)}"
    rows = facts(
        ("its own estimate", _s(chosen.seconds)),
        ("a benchmark would measure", expected),
        ("algbw", f"{_rate(choice.algbw)}: size over time"),
        ("busbw", f"{_rate(choice.busbw)}: times {choice.bus_factor:.4g}, what a rank sends per byte of size"),
        ("channels", str(chosen.channels or "")),
    )
    refused = [f"{option.algorithm}: {option.reason}" for option in choice.not_offered]
    title = clean(f"{choice.library} {choice.version}: {where} by {chosen.name}")
    console.print(
        blocks(
            [Text.assemble(title, style="bold")],
            [rows],
            [_options(choice)],
            list_lines("why", list(choice.why)),
            list_lines("not considered", refused),
            [_sweep(choice)],
            list_lines("assumed", list(choice.notes)),
        )
    )


def _options(choice: LibraryChoice) -> Table:
    names = ("algorithm", "protocol", "time", "latency", "bytes", "busbw", "channels")
    rows = (
        (option.algorithm, option.protocol, _s(option.seconds), _s(option.latency_s), _s(option.bytes_s),
         _rate(option.busbw), str(option.channels or ""))
        for option in choice.options
    )  # fmt: skip
    return header_table(names, rows, right=names[2:])


def _sweep(choice: LibraryChoice) -> Table:
    names = ("size", "takes", "channels", "its estimate", "busbw", "measured", "measured busbw")
    rows = (
        (format_quantity(point.size_bytes, "B", 3),
         f"{point.algorithm}/{point.protocol}" if point.protocol else point.algorithm, str(point.channels or ""),
         _s(point.seconds), _rate(point.busbw), _s(point.measured_seconds), _rate(point.measured_busbw))
        for point in choice.sweep
    )  # fmt: skip
    return header_table(names, rows, right=("size", *names[2:]))


def _rate(bytes_per_s: float) -> str:
    return format_quantity(bytes_per_s, "B/s", 3)


# -- crossing chart ---------------------------------------------------------------------------------------------------


MARKS = "abcdefghijklmnopqrstuvwxyz"
COLOURS = ("#2f6fb2", "#d1661f", "#3f8f4f", "#8c56a8", "#b3394a", "#5f7a86")
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 30
POINTS = 9  # of a range on a terminal


def crossing_lines(ranges: Sequence[SizeRange]) -> list[str]:
    """The chart in plain characters: a letter for each algorithm, `.` the bound, `|` where two cross."""
    dots: list[Dot] = []
    low = min(range_.min_bound_seconds for range_ in ranges)
    for mark, one in zip(MARKS, ranges, strict=False):
        sizes = np.geomspace(one.min_bytes, one.max_bytes, POINTS)
        bound = np.interp(sizes, _ends(one, "bytes"), _ends(one, "bound_seconds"))
        taken = np.interp(sizes, _ends(one, "bytes"), _ends(one, "seconds"))
        dots += [Dot(x=float(x), y=float(y), mark=".") for x, y in zip(sizes, bound, strict=True)]
        dots += [Dot(x=float(x), y=float(y), mark=mark) for x, y in zip(sizes, taken, strict=True)]
    dots += [Dot(x=range_.min_bytes, y=low, mark="|") for range_ in ranges[1:]]
    across = PlotAxis(name="size", form=lambda value: format_quantity(value, "B", 2))
    up = PlotAxis(name="seconds", form=lambda value: format_quantity(value, "s", 2))
    named = [f"{mark} {one.algorithm}" for mark, one in zip(MARKS, ranges, strict=False)]
    return [*scatter(dots, across, up), f"{', '.join(named)}; . bound; | crossing"]


def _ends(one: SizeRange, what: str) -> list[float]:
    return [getattr(one, f"min_{what}"), getattr(one, f"max_{what}")]


def crossing_marks(ranges: Sequence[SizeRange], width: float, height: float) -> list[str]:
    """The chart as marks of a drawing, both axes logarithmic, a rule with its size at each crossing."""
    low, high = ranges[0].min_bytes, ranges[-1].max_bytes
    times = [
        value
        for range_ in ranges
        for value in (*_ends(range_, "seconds"), *_ends(range_, "bound_seconds"))
        if value > 0
    ]
    least, most = min(times), max(times)

    def x(size: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * log10(size / low) / max(log10(high / low), 1e-9)

    def y(seconds: float) -> float:
        share = log10(max(seconds, least) / least) / max(log10(most / least), 1e-9)
        return height - BOTTOM - (height - TOP - BOTTOM) * share

    marks = [html.label("fastest by size; dashed: bound", LEFT, 14)]
    for seconds in (least, most):
        marks += [html.rule(f"M{LEFT} {y(seconds):.1f}H{width - RIGHT:.1f}")]
        marks += [html.label(format_quantity(seconds, "s", 2), LEFT - 6, y(seconds) + 4, anchor="end")]
    for size, anchor in ((low, "start"), (high, "end")):
        marks.append(html.label(format_quantity(size, "B", 3), x(size), height - 8, anchor=anchor))
    for row, one in enumerate(ranges):
        colour, (first, last) = COLOURS[row % len(COLOURS)], _ends(one, "bytes")
        sizes = np.geomspace(first, last, 24)
        taken = np.interp(sizes, (first, last), _ends(one, "seconds"))
        bound = np.interp(sizes, (first, last), _ends(one, "bound_seconds"))
        marks.append(html.rule(_path([(x(s), y(t)) for s, t in zip(sizes, bound, strict=True)]), "line"))
        path = _path([(x(s), y(t)) for s, t in zip(sizes, taken, strict=True)])
        sentence = f"{one.algorithm}, {one.chunks} chunks"
        line = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2">'
        marks.append(f"{line}<title>{html.escape_text(sentence)}</title></path>")
        high_up = TOP - 6 - 11 * (row % 2)
        marks.append(html.label(one.algorithm, (x(first) + x(last)) / 2, high_up, anchor="middle"))
        if row:
            marks.append(html.rule(f"M{x(first):.1f} {TOP}V{height - BOTTOM:.1f}"))
            marks.append(html.label(format_quantity(first, "B", 3), x(first), height - 8, anchor="middle"))
    return marks


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def crossing_table(ranges: Sequence[SizeRange]) -> str:
    """The ranges as a table of a page."""
    rows = [
        (range_.algorithm, range_.chunks, *(format_quantity(value, "B", 3) for value in _ends(range_, "bytes")),
         *(format_quantity(value, "s", 3) for value in _ends(range_, "seconds")))
        for range_ in ranges
    ]  # fmt: skip
    return html.table(("fastest", "chunks", "from", "to", "takes at first", "takes at last"), rows, text=(0,))


# -- picture of a schedule --------------------------------------------------------------------------------------------


MOST_LINKS, MOST_ROUNDS = 256, 512  # cells
PAGE_LINKS, PAGE_ROUNDS = 96, 160  # cells of a page, each of which tells what it is
HEAT_LEFT, HEAT_TOP, HEAT_EDGE = 24, 34, 12
CHART = 300  # pixels of the chart by size
FULL = (47, 111, 178)  # colour of the fullest cell


def heat(algorithm: Algorithm, graph: Graph, most_links: int, most_rounds: int, *, by_bytes: bool = True) -> Array:
    """Bytes, or with `by_bytes` off uses, of each link in each round as a share of the most; several in a cell where
    there are more."""
    steps = algorithm.steps
    rows, columns = min(most_links, graph.links), min(most_rounds, algorithm.rounds)
    shares = np.zeros((rows, columns))
    if not len(steps) or not graph.links:
        return shares
    pairs, which = np.unique(steps.source.astype(np.int64) * graph.nodes + steps.target, return_inverse=True)
    ways = shortest_routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    chunk_bytes = np.broadcast_to(algorithm.contract.shares(), (algorithm.contract.chunks,))[steps.chunk]
    weights = chunk_bytes if by_bytes else np.ones(len(chunk_bytes))
    for hop in range(ways.shape[1]):
        link = ways[which, hop]
        on = link >= 0
        at = (link[on] * rows // graph.links, steps.round[on].astype(np.int64) * columns // algorithm.rounds)
        np.add.at(shares, at, weights[on])
    return shares / (shares.max() or 1.0)


def write_schedule_picture(found: CollectiveTime, path: Path) -> None:
    """Write the picture as PNG, SVG or a page of HTML, by the name's ending."""
    kind = path.suffix.lower()
    if kind == ".html":
        write_text(path, page(found))
        return
    shares = heat(found.algorithm, found.graph, MOST_LINKS, MOST_ROUNDS)
    if kind == ".png":
        write_bytes(path, _png(shares, _side(shares), _picture_title(found)))
    else:
        write_text(path, _svg(shares, _side(shares), _picture_title(found), found.by_size or ()))


def _picture_title(found: CollectiveTime) -> str:
    algorithm = found.algorithm
    return f"{algorithm.contract.collective} by {algorithm.name} on {found.graph.name}: rounds across, links down"


def _side(filled: Array) -> tuple[int, int]:
    """Pixels of a cell."""
    return int(np.clip(900 // max(filled.shape[1], 1), 1, 16)), int(np.clip(600 // max(filled.shape[0], 1), 2, 16))


def _size(filled: Array, side: tuple[int, int]) -> tuple[int, int]:
    return max(HEAT_LEFT + filled.shape[1] * side[0] + HEAT_EDGE, 760), HEAT_TOP + filled.shape[0] * side[1] + HEAT_EDGE


def _png(filled: Array, side: tuple[int, int], title: str) -> bytes:
    canvas = Canvas(*_size(filled, side), PAPER)
    canvas.text(title, HEAT_LEFT, 20, INK, "start")
    cells = np.kron(filled, np.ones((side[1], side[0])))[..., None]
    drawn = np.array(PAPER) + cells * (np.array(FULL, float) - np.array(PAPER, float))
    canvas.pixels[HEAT_TOP : HEAT_TOP + cells.shape[0], HEAT_LEFT : HEAT_LEFT + cells.shape[1]] = drawn.astype(np.uint8)
    return canvas.png()


def _heat_cells(filled: Array, side: tuple[int, int], told: Sequence[str] = ()) -> list[str]:
    """A rectangle for each cell with bytes, which tells what it is where texts for links are given."""
    colour = "#" + "".join(f"{channel:02x}" for channel in FULL)
    marks = []
    for row, column in zip(*np.nonzero(filled), strict=True):
        x, y = HEAT_LEFT + int(column) * side[0], HEAT_TOP + int(row) * side[1]
        place = f'x="{x}" y="{y}" width="{side[0]}" height="{side[1]}"'
        fill = f'fill="{colour}" fill-opacity="{filled[row, column]:.2f}"'
        tip = f"<title>{html.escape_text(told[row])}</title>" if told else ""
        marks.append(f"<rect {place} {fill}>{tip}</rect>" if tip else f"<rect {place} {fill}/>")
    return marks


def _svg(filled: Array, side: tuple[int, int], title: str, by_size: Sequence[SizeRange]) -> str:
    marks = [html.label(title, HEAT_LEFT, 20), *_heat_cells(filled, side)]
    width, height = _size(filled, side)
    if by_size:
        marks.append(f'<g transform="translate(0 {height})">{"".join(crossing_marks(by_size, width, CHART))}</g>')
        height += CHART
    style = "text{font:11px sans-serif;fill:#1d2733}.rule{stroke:#dfe3e8;fill:none}.line{stroke:#8a94a0;"
    style += "stroke-dasharray:4 3;fill:none}"
    return standalone_svg(html.svg(width, height, marks), style) + "\n"


def page(found: CollectiveTime) -> str:
    """A page: time beside its bound, the schedule, the busiest links, and who is fastest at which size."""
    algorithm, graph, by_size = found.algorithm, found.graph, found.by_size
    size = format_quantity(found.size_bytes, "B", 4)
    title = f"{found.collective} of {size} on {graph.name}"
    pairs = [
        (format_quantity(found.seconds, "s", 4), f"by {algorithm.name}"),
        (format_quantity(found.bound.seconds, "s", 4), f"bound, by {found.bound.by}"),
        (f"{found.ratio_to_bound:.3f}", "times the bound of its chunks"),
        (format_quantity(found.busbw, "B/s", 4), "busbw"),
        (f"{algorithm.rounds:,}", "rounds"),
        (f"{len(algorithm.steps):,}", "steps, verified" if found.verification.ok else "steps, NOT verified"),
    ]
    shares = heat(algorithm, graph, PAGE_LINKS, PAGE_ROUNDS)
    body = f"<h1>{html.escape_text(title)}</h1>{html.facts(pairs)}<h2>Schedule</h2><figure>"
    side = _side(shares)
    cells = _heat_cells(shares, side, _link_labels(found, shares))
    right = HEAT_LEFT + shares.shape[1] * side[0]
    first = html.label("round 1", HEAT_LEFT, HEAT_TOP - 8)
    last = html.label(f"round {algorithm.rounds}", right, HEAT_TOP - 8, anchor="end")
    body += html.svg(*_size(shares, side), [*([first, last] if algorithm.rounds > 1 else [first]), *cells])
    caption = "Darker: more bytes in these rounds on these links; the darkest cell is the fullest."
    body += f"<figcaption>{caption}</figcaption></figure>{_busiest(found)}"
    if by_size:
        chart = html.svg(760, CHART, crossing_marks(by_size, 760, CHART))
        body += f"<h2>By size</h2><figure>{chart}</figure>{crossing_table(by_size)}"
    if found.verification.problems:
        rows = [(str(problem),) for problem in found.verification.problems]
        body += html.section("What is wrong", ("step, rank",), rows, text=(0,))
    return html.document(title=title, body=body, style=html.page_style())


def _link_labels(found: CollectiveTime, filled: Array) -> list[str]:
    """What each row of cells stands for."""
    graph, rows = found.graph, filled.shape[0]
    busy = found.timing.link_bytes / graph.bytes_per_s / (found.seconds or 1.0)
    labels = []
    for row in range(rows):
        low, high = -(-row * graph.links // rows), -(-(row + 1) * graph.links // rows)
        ends = f"{graph.tail[low]} to {graph.head[low]}"
        many = f"{high - low} links from {ends} on" if high - low > 1 else f"link {ends}"
        labels.append(f"{many}, busy {busy[low:high].mean():.0%} of the time")
    return labels


def _busiest(found: CollectiveTime) -> str:
    graph, carried_bytes = found.graph, found.timing.link_bytes
    if not graph.links or not found.seconds:
        return ""
    busy = carried_bytes / graph.bytes_per_s / found.seconds
    rows = [
        (f"{graph.tail[link]} to {graph.head[link]}", format_quantity(float(carried_bytes[link]), "B", 3),
         f"{busy[link]:.1%}")
        for link in np.argsort(-busy, kind="stable")[:8]
    ]  # fmt: skip
    return html.section("Busiest links", ("link", "bytes", "of the time"), rows, text=(0,))
