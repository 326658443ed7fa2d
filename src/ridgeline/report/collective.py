"""Draw what `ridgeline collective` answers: times beside bounds, four prices, simulations, files, the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.answer import CollectivePrices, CollectiveTime, LayerPrice
from ridgeline.comm.catalogue import AlgorithmList
from ridgeline.comm.crossings import SizeRange
from ridgeline.comm.formats.files import CollectiveFile
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import routes
from ridgeline.comm.simulation.contention import Contention
from ridgeline.comm.simulation.message_rounds import Method
from ridgeline.core.units import format_quantity
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed, percent
from ridgeline.report.crossing_chart import crossing_lines

METHODS: dict[Method, str] = {
    "exact": "max-min rates at every start and end",
    "windows": "max-min rates in windows of a tenth of a message",
    "rounds": "by the bytes of a round on a link",
}
LAYERS = {
    "ideal": "on ideal links",
    "library": "by the library's tuner",
    "benchmark": "in a benchmark",
    "step": "in a step",
}
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
        ("chunked bound", format_quantity(time.chunked_bound_s, "s", 4) if time.chunked_bound_s else DASH),
        ("over the bound", f"{time.ratio_to_bound:.3f}"),
        ("algbw, busbw", " ".join(format_quantity(rate, "B/s", 4) for rate in (time.algbw, time.busbw))),
        ("verified", "yes" if time.verification.ok else "NO"),
        ("synthesized in", "" if built is None else format_quantity(built, "s", 3)),
    )
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold")],
            [rows],
            listed("not verified", [str(problem) for problem in time.verification.problems]),
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
    table = headed(("what it takes", "", "more", "by", "counts besides"), right=("", "more"))
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
    alone = run.alone_seconds
    if alone != run.seconds:
        more = percent(run.seconds / alone - 1)
        lines.append(("by itself", f"{format_quantity(alone, 's', 4)}; stragglers and others add {more}"))
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
    table = headed(("fastest", "from", "to", "takes", "bound"), right=("from", "to", "takes", "bound"))
    for row in ranges:
        sizes = (format_quantity(size, "B", 3) for size in (row.min_bytes, row.max_bytes))
        times = (
            " to ".join(format_quantity(seconds, "s", 3) for seconds in ends)
            for ends in ((row.min_seconds, row.max_seconds), (row.min_bound_seconds, row.max_bound_seconds))
        )
        table.add_row(f"{row.algorithm}, {row.chunks} chunks", *sizes, *times)
    return table


def _links(time: CollectiveTime) -> Table:
    table = headed(("busiest link", "bytes", "of the time"), right=("bytes", "of the time"))
    for link in time.busiest:
        table.add_row(f"{link.source} to {link.target}", format_quantity(link.bytes, "B", 3), percent(link.busy))
    return table


def _picture(algorithm: Algorithm, graph: Graph) -> list[Text]:
    """Rounds from left to right, links from top to bottom: how often each is used."""
    steps = algorithm.steps
    if not len(steps) or not graph.links:
        return []
    rows, columns = min(HEAT_LINKS, graph.links), min(HEAT_ROUNDS, algorithm.rounds)
    pairs, which = np.unique(steps.source.astype(np.int64) * graph.nodes + steps.target, return_inverse=True)
    ways = routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    heat = np.zeros((rows, columns))
    for hop in range(ways.shape[1]):
        link = ways[which, hop]
        on = link >= 0
        np.add.at(heat, (link[on] * rows // graph.links, steps.round[on] * columns // algorithm.rounds), 1.0)
    top = heat.max() or 1.0
    level = np.ceil(heat / top * (len(HEAT) - 1)).astype(int)
    lines = [Text("rounds from left to right, links from top to bottom", style="dim")]
    return lines + [Text("".join(HEAT[cell] for cell in row)) for row in level]


def draw_verification(file: CollectiveFile, console: Console) -> None:
    """Print whether a file's algorithm is right, or what is wrong with it; the settings of a library's file."""
    if file.rule_texts:
        verdict = "some rules have no effect" if file.warnings else "every rule is one that the library takes"
        rules = listed(f"{file.format}: {verdict}", list(file.rule_texts))
        console.print(blocks(rules, listed("warnings", list(file.warnings))))
        return
    proven = "no race, no deadlock" if file.format == "ridgeline" else "no deadlock, in every order tried"
    verdict = f"every output right, {proven}" if file.verified else "NOT verified"
    what = f"{file.algorithm_name}, {file.collective} on {file.ranks} ranks, {file.steps:,} steps"
    lines = [f"{problem.path}: {problem.given}, expected {problem.expected}" for problem in file.problems]
    console.print(blocks([clean(f"{file.format}: {what}: {verdict}")], listed("problems", lines)))


def draw_library(library: AlgorithmList, console: Console) -> None:
    """Print algorithms down, collectives across, times where there is an algorithm."""
    rows = library.algorithms
    names, kinds = (list(dict.fromkeys(getattr(row, key) for row in rows)) for key in ("algorithm", "collective"))
    cells = {(row.algorithm, row.collective): row for row in rows}
    table = headed(("algorithm", *kinds), right=kinds)
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
