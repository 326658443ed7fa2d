"""Turn a collective's time into a sheet of facts, and the sheet and its rounds into a terminal page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.answer import CollectivePrices, CollectiveTime, LayerPrice
from ridgeline.comm.catalogue import Entry
from ridgeline.comm.crossings import SizeRange
from ridgeline.comm.formats.files import CollectiveFile
from ridgeline.comm.formats.hccl_env import HcclSetting
from ridgeline.comm.formats.tuner_csv import Rule
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import routes
from ridgeline.core.units import format_quantity
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed, percent
from ridgeline.report.contention import contention_sheet, simulation_facts
from ridgeline.report.crossing_chart import crossing_lines
from ridgeline.report.sheets.collective import (
    CollectiveLibrarySheet,
    CollectiveSheet,
    LinkSheet,
    SizeRangeSheet,
    VerificationSheet,
)
from ridgeline.report.sheets.plain import plain

LAYERS = {
    "ideal": "on ideal links",
    "library": "by the library's tuner",
    "benchmark": "in a benchmark",
    "step": "in a step",
}
SHOWN = 8  # links
HEAT = " ░▒▓█"  # how many of a cell's rounds a link is used in
HEAT_LINKS, HEAT_ROUNDS = 16, 64  # cells of the picture


def collective_sheet(found: CollectiveTime) -> CollectiveSheet:
    """Everything the answer says."""
    sheet: CollectiveSheet = {
        "kind": "collective",
        "possible": True,
        "collective": found.collective,
        "topology": found.graph.name,
        "ranks": found.graph.ranks,
        "links": found.graph.links,
        "size_bytes": found.size_bytes,
        "algorithm": found.algorithm.name,
        "seconds": found.seconds,
        "algbw": found.algbw,
        "busbw": found.busbw,
        "bound_seconds": found.bound.seconds,
        "bound_by": found.bound.by,
        "chunked_bound_seconds": found.chunked_bound_s or None,
        "ratio_to_bound": found.ratio_to_bound,
        "rounds": found.algorithm.rounds,
        "steps": len(found.algorithm.steps),
        "chunks": found.algorithm.contract.chunks,
        "synthesis_seconds": found.synthesis_seconds,
        "verified": found.verification.ok,
        "busiest": _busiest(found),
        "simulation": contention_sheet(found) if found.contention else None,
        "prices": plain(found.prices) if found.prices else None,
    }
    if found.by_size is not None:
        sheet["by_size"] = by_size_sheet(found.by_size)
    return sheet


def _busiest(found: CollectiveTime) -> list[LinkSheet]:
    graph, carried = found.graph, found.timing.link_bytes
    if not graph.links or not found.seconds:
        return []
    busy = carried / graph.bytes_per_s / found.seconds
    return [
        {
            "source": int(graph.tail[link]),
            "target": int(graph.head[link]),
            "bytes": float(carried[link]),
            "busy": float(busy[link]),
        }
        for link in np.argsort(-busy, kind="stable")[:SHOWN]
    ]


def verification_sheet(found: CollectiveFile) -> VerificationSheet:
    """Everything a verification says."""
    algorithm, checked = found.algorithm, found.verification
    return {
        "kind": "verification",
        "format": found.format,
        "collective": algorithm.contract.collective if algorithm else "",
        "algorithm": algorithm.name if algorithm else "",
        "ranks": algorithm.ranks if algorithm else 0,
        "rounds": algorithm.rounds if algorithm else 0,
        "steps": checked.steps if checked else 0,
        "verified": checked.ok if checked else True,
        "problems": plain(list(checked.problems)) if checked else [],
        "settings": [*map(_rule, found.rules), *map(_setting, found.settings)],
        "warnings": [one.without_effect for one in found.rules if one.without_effect],
    }


def _rule(rule: Rule) -> str:
    sizes = f"{rule.min_bytes} to {rule.max_bytes} B"
    where = ", ".join(f"{value} {name}" for value, name in ((rule.nodes, "nodes"), (rule.ranks, "ranks")) if value >= 0)
    return f"{rule.collective} of {sizes}{' on ' + where if where else ''}: {rule.algorithm}/{rule.protocol}"


def _setting(setting: HcclSetting) -> str:
    levels = ", ".join(f"level {level} {algorithm}" for level, algorithm in setting.levels)
    return f"{setting.operator or 'every operator'}: {levels}"


def draw_collective(sheet: CollectiveSheet, found: CollectiveTime, console: Console) -> None:
    """Print the time beside its bound, the busiest links and the picture of the schedule."""
    size = format_quantity(sheet["size_bytes"], "B", 4)
    seconds = format_quantity(sheet["seconds"], "s", 4)
    title = f"{sheet['collective']} of {size} on {sheet['topology']}: {seconds} on ideal links"
    chunked = sheet["chunked_bound_seconds"]
    built = sheet["synthesis_seconds"]
    rows = facts(
        ("algorithm", f"{sheet['algorithm']}, {sheet['rounds']} rounds, {sheet['steps']:,} steps"),
        ("bound", f"{format_quantity(sheet['bound_seconds'], 's', 4)} by {sheet['bound_by']}"),
        ("chunked bound", DASH if chunked is None else format_quantity(chunked, "s", 4)),
        ("over the bound", f"{sheet['ratio_to_bound']:.3f}"),
        ("algbw, busbw", " ".join(format_quantity(sheet[key], "B/s", 4) for key in ("algbw", "busbw"))),
        ("verified", "yes" if sheet["verified"] else "NO"),
        ("synthesized in", "" if built is None else format_quantity(built, "s", 3)),
    )
    wrong = [str(problem) for problem in found.verification.problems]
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold")],
            [rows],
            listed("not verified", wrong),
            [] if found.prices is None else [_prices(found.prices)],
            [] if sheet["simulation"] is None else [facts(*simulation_facts(sheet["simulation"]))],
            [_sizes(sheet["by_size"])] if "by_size" in sheet else [],
            [Text(line) for line in crossing_lines(sheet["by_size"])] if "by_size" in sheet else [],
            [_links(sheet)],
            _picture(found.algorithm, found.graph),
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


def by_size_sheet(found: Sequence[SizeRange]) -> list[SizeRangeSheet]:
    """The ranges of sizes and who is fastest there."""
    return [
        {
            "algorithm": one.algorithm,
            "chunks": one.chunks,
            "min_bytes": one.min_bytes,
            "max_bytes": one.max_bytes,
            "min_seconds": one.seconds[0],
            "max_seconds": one.seconds[1],
            "min_bound_seconds": one.bound_s[0],
            "max_bound_seconds": one.bound_s[1],
        }
        for one in found
    ]


def _sizes(ranges: list[SizeRangeSheet]) -> Table:
    table = headed(("fastest", "from", "to", "takes", "bound"), right=("from", "to", "takes", "bound"))
    for one in ranges:
        ends = (format_quantity(one[key], "B", 3) for key in ("min_bytes", "max_bytes"))
        times = (
            " to ".join(format_quantity(one[key], "s", 3) for key in keys)
            for keys in (("min_seconds", "max_seconds"), ("min_bound_seconds", "max_bound_seconds"))
        )
        table.add_row(f"{one['algorithm']}, {one['chunks']} chunks", *ends, *times)
    return table


def _links(sheet: CollectiveSheet) -> Table:
    table = headed(("busiest link", "bytes", "of the time"), right=("bytes", "of the time"))
    for one in sheet["busiest"]:
        cells = (format_quantity(one["bytes"], "B", 3), percent(one["busy"]))
        table.add_row(f"{one['source']} to {one['target']}", *cells)
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


def draw_verification(sheet: VerificationSheet, console: Console) -> None:
    """Print whether a file's algorithm is right, or what is wrong with it; the settings of a library's file."""
    if sheet["settings"]:
        verdict = "some rules have no effect" if sheet["warnings"] else "every rule is one that the library takes"
        rules = listed(f"{sheet['format']}: {verdict}", sheet["settings"])
        console.print(blocks(rules, listed("warnings", sheet["warnings"])))
        return
    proven = "no race, no deadlock" if sheet["format"] == "ridgeline" else "no deadlock, in every order tried"
    verdict = f"every output right, {proven}" if sheet["verified"] else "NOT verified"
    what = f"{sheet['algorithm']}, {sheet['collective']} on {sheet['ranks']} ranks, {sheet['steps']:,} steps"
    lines = [f"{one['path']}: {one['given']}, expected {one['expected']}" for one in sheet["problems"]]
    console.print(blocks([clean(f"{sheet['format']}: {what}: {verdict}")], listed("problems", lines)))


def library_sheet(graph: Graph, size_bytes: float, found: Sequence[Entry]) -> CollectiveLibrarySheet:
    """Every algorithm of the library, for each collective it can do."""
    return {
        "kind": "collective-library",
        "topology": graph.name,
        "ranks": graph.ranks,
        "size_bytes": size_bytes,
        "algorithms": plain(list(found)),
    }


def draw_library(sheet: CollectiveLibrarySheet, console: Console) -> None:
    """Print algorithms down, collectives across, times where there is an algorithm."""
    names = list(dict.fromkeys(one["algorithm"] for one in sheet["algorithms"]))
    kinds = list(dict.fromkeys(one["collective"] for one in sheet["algorithms"]))
    cells = {(one["algorithm"], one["collective"]): one for one in sheet["algorithms"]}
    table = headed(("algorithm", *kinds), right=kinds)
    for name in names:
        row = []
        for kind in kinds:
            one = cells.get((name, kind))
            right = "" if one is None or one["verified"] else " WRONG"
            row.append(DASH if one is None else format_quantity(one["seconds"], "s", 3) + right)
        table.add_row(name, *row)
    size = format_quantity(sheet["size_bytes"], "B", 4)
    wrong = sum(not one["verified"] for one in sheet["algorithms"])
    verdict = "every output right" if not wrong else f"{wrong} NOT verified"
    title = f"{size} on {sheet['topology']}, {sheet['ranks']} ranks: {len(sheet['algorithms'])} algorithms, {verdict}"
    console.print(blocks([Text.assemble(clean(title), style="bold")], [table]))
