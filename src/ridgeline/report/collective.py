"""Draw what `ridgeline collective` answers: times beside bounds, four prices, simulations, files, the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

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
from ridgeline.core.units import format_quantity
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import DASH, Dot, PlotAxis, blocks, clean, facts, header_table, list_lines, percent, scatter
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
    shares = _uses(algorithm, graph, HEAT_LINKS, HEAT_ROUNDS)
    level = np.ceil(shares * (len(HEAT) - 1)).astype(int)
    lines = [Text("rounds from left to right, links from top to bottom", style="dim")]
    return lines + [Text("".join(HEAT[cell] for cell in row)) for row in level]


def _uses(algorithm: Algorithm, graph: Graph, most_links: int, most_rounds: int) -> Array:
    """Uses of each link in each round as a share of the most; several in a cell where there are more."""
    steps = algorithm.steps
    rows, columns = min(most_links, graph.links), min(most_rounds, algorithm.rounds)
    shares = np.zeros((rows, columns))
    if not len(steps) or not graph.links:
        return shares
    pairs, which = np.unique(steps.source.astype(np.int64) * graph.nodes + steps.target, return_inverse=True)
    ways = shortest_routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    for hop in range(ways.shape[1]):
        link = ways[which, hop]
        on = link >= 0
        at = (link[on] * rows // graph.links, steps.round[on].astype(np.int64) * columns // algorithm.rounds)
        np.add.at(shares, at, 1.0)
    return shares / (shares.max() or 1.0)


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
POINTS = 9  # of a range on a terminal


def crossing_lines(ranges: Sequence[SizeRange]) -> list[str]:
    """The chart in plain characters: a letter for each algorithm, `.` the bound, `|` where two cross."""
    dots: list[Dot] = []
    low = min(range_.min_bound_seconds for range_ in ranges)
    for mark, one in zip(MARKS, ranges, strict=False):
        sizes = np.geomspace(one.min_bytes, one.max_bytes, POINTS)
        bound = np.interp(sizes, range_ends(one, "bytes"), range_ends(one, "bound_seconds"))
        taken = np.interp(sizes, range_ends(one, "bytes"), range_ends(one, "seconds"))
        dots += [Dot(x=float(x), y=float(y), mark=".") for x, y in zip(sizes, bound, strict=True)]
        dots += [Dot(x=float(x), y=float(y), mark=mark) for x, y in zip(sizes, taken, strict=True)]
    dots += [Dot(x=range_.min_bytes, y=low, mark="|") for range_ in ranges[1:]]
    across = PlotAxis(name="size", form=lambda value: format_quantity(value, "B", 2))
    up = PlotAxis(name="seconds", form=lambda value: format_quantity(value, "s", 2))
    named = [f"{mark} {one.algorithm}" for mark, one in zip(MARKS, ranges, strict=False)]
    return [*scatter(dots, across, up), f"{', '.join(named)}; . bound; | crossing"]


def range_ends(one: SizeRange, what: str) -> list[float]:
    return [getattr(one, f"min_{what}"), getattr(one, f"max_{what}")]
