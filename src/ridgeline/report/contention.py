"""Turn a simulated collective into its sheet and the lines that tell it."""

from __future__ import annotations

import numpy as np

from ridgeline.comm.answer import CollectiveTime
from ridgeline.comm.simulation.contention import Contention
from ridgeline.comm.simulation.unshared import Method
from ridgeline.core.units import format_quantity
from ridgeline.report.cells import percent
from ridgeline.report.sheets.collective import LinkSheet, SeedsSheet, SimulationSheet

METHODS: dict[Method, str] = {
    "exact": "max-min rates at every start and end",
    "windows": "max-min rates in windows of a tenth of a message",
    "rounds": "by the bytes of a round on a link",
}


def contention_sheet(found: CollectiveTime) -> SimulationSheet:
    """What simulation says of an answer that was simulated."""
    ran = found.contention
    assert ran is not None
    return {
        "seconds": ran.seconds,
        "over_alpha_beta": ran.seconds / found.seconds if found.seconds else 1.0,
        "alone_seconds": ran.alone_s[0],
        "paths": ran.conditions.paths,
        "seed": ran.conditions.seed,
        "seeds": _seeds(ran),
        "slowest_link": _slowest(ran),
        "beside": [
            {"collective": job.name, "size_bytes": job.size_bytes, "seconds": took, "alone_seconds": alone}
            for job, took, alone in list(zip(ran.jobs, ran.simulated.job_s, ran.alone_s, strict=True))[1:]
        ],
        "transfers": ran.simulated.transfers,
        "method": ran.simulated.method,
        "wall_seconds": ran.wall_s,
    }


def _seeds(ran: Contention) -> SeedsSheet | None:
    times = ran.by_seed
    if len(times) < 2:
        return None
    low, middle, ninety, high, top = (float(np.quantile(times, at)) for at in (0.0, 0.5, 0.9, 0.95, 1.0))
    return {"count": len(times), "min": low, "median": middle, "p90": ninety, "p95": high, "max": top}


def _slowest(ran: Contention) -> LinkSheet:
    done, graph = ran.simulated, ran.graph
    if not graph.links or not done.seconds:
        return {"source": 0, "target": 0, "bytes": 0.0, "busy": 0.0}
    link = done.slowest_link
    carried, rate = float(done.link_bytes[link]), float(done.link_rates[link])
    ends = {"source": int(graph.tail[link]), "target": int(graph.head[link])}
    return {**ends, "bytes": carried, "busy": carried / rate / done.seconds}  # type: ignore[typeddict-item]


def simulation_facts(sheet: SimulationSheet) -> list[tuple[str, str]]:
    """Lines of a terminal page."""
    seconds, alone, link = sheet["seconds"], sheet["alone_seconds"], sheet["slowest_link"]
    over = f"x {sheet['over_alpha_beta']:.3f} of the time above"
    how = f"paths: {sheet['paths']}; {METHODS[sheet['method']]}"
    lines = [("simulated", f"{format_quantity(seconds, 's', 4)}, {over}; {how}")]
    if alone != seconds:
        added = f"{format_quantity(alone, 's', 4)}; stragglers and others add {percent(seconds / alone - 1)}"
        lines.append(("by itself", added))
    seeds = sheet["seeds"]
    if seeds is not None:
        low, middle, high, top = (format_quantity(seeds[key], "s", 4) for key in ("min", "median", "p90", "max"))
        lines.append((f"over {seeds['count']} seeds", f"median {middle}, p90 {high}, worst {top}, best {low}"))
    busy = f"{format_quantity(link['bytes'], 'B', 3)}, {percent(link['busy'])} of the time"
    lines.append(("slowest link", f"{link['source']} to {link['target']}: {busy}"))
    for one in sheet["beside"]:
        took = f"{format_quantity(one['seconds'], 's', 4)}, {format_quantity(one['alone_seconds'], 's', 4)} by itself"
        lines.append((f"beside: {one['collective']}", took))
    return lines
