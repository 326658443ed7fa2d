"""Turn an Analysis into further columns of its page: gaps by cause, the critical path, the graph that replays.

gap_*      every gap of every chip, the longest first kept: start, length, cause, process
path_*     pieces of the critical path: start, length, and the track they run through
edge_*     dependencies in the order a replay takes them: source, target, lag and what a question scales
point_*    delay of every point, and whether it is a start or an end of work on a chip
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analysis.idle import CAUSES
from ridgeline.trace.analyze import Analysis
from ridgeline.trace.graph.dependency_graph import Graph
from ridgeline.trace.graph.edges import BODY, CALL, COLLECTIVE, HAND_OVER, LAUNCH, ORDER, RECEIVE
from ridgeline.trace.timeline import Timeline

Columns = dict[str, NDArray[Any]]
MOST_GAPS, MOST_PIECES = 120_000, 200_000
MOST_EDGES = 600_000  # a page that replays more would be too large
OTHER, HOST, FIRST = 0, 1, 2  # what a question can scale: nothing, the host, or class FIRST and up


def layers_of(found: Analysis, first_ns: int) -> tuple[Columns, dict[str, Any]]:
    """Columns and tables of all layers; those that would be too large are left out."""
    columns: Columns = {}
    tables: dict[str, Any] = {"gap_causes": list(CAUSES), "replay_classes": [], "path_tracks": []}
    columns |= _gaps(found, first_ns)
    path, tracks = _path(found, first_ns)
    columns |= path
    tables["path_tracks"] = tracks
    if found.graph is not None and 0 < len(found.graph.dst) <= MOST_EDGES:
        replayed, classes = _replay(found.graph)
        columns |= replayed
        tables["replay_classes"] = classes
    return columns, tables


def _gaps(found: Analysis, first_ns: int) -> Columns:
    gaps, line = found.gaps, found.timeline
    if gaps is None or not len(gaps.length):
        return {}
    kept = np.sort(np.argsort(-gaps.length, kind="stable")[:MOST_GAPS])
    end = line.start_ns[gaps.ended[kept]]
    order = np.argsort(end - gaps.length[kept], kind="stable")
    kept, end = kept[order], end[order]
    return {
        "gap_start": (end - gaps.length[kept] - first_ns).astype(np.float64),
        "gap_length": gaps.length[kept].astype(np.float64),
        "gap_cause": gaps.cause[kept].astype(np.uint32),
        "gap_process": line.process[gaps.ended[kept]].astype(np.uint32),
    }


def _path(found: Analysis, first_ns: int) -> tuple[Columns, list[int]]:
    """Pieces with a span, by time; clocks of ranks are put back to those of the trace."""
    if found.critical is None or found.graph is None:
        return {}, []
    pieces, line = found.critical.pieces, found.timeline
    own = np.flatnonzero(pieces.row >= 0)[::-1][:MOST_PIECES]
    rows = pieces.row[own]
    shift = np.array([found.graph.matched.shift.get(rank, 0) for rank in line.tables.ranks] or [0], np.int64)
    start = pieces.start[own] + shift[line.process[rows]] - first_ns
    distinct, track = np.unique(line.tracks(), return_inverse=True)
    return {
        "path_start": start.astype(np.float64),
        "path_length": (pieces.end[own] - pieces.start[own]).astype(np.float64),
        "path_track": track[rows].astype(np.uint32),
    }, list(range(len(distinct)))


def _replay(graph: Graph) -> tuple[Columns, list[str]]:
    line = graph.line
    row = np.maximum(graph.row_of(graph.dst), 0)
    body = np.isin(graph.kind, (BODY, COLLECTIVE, RECEIVE)) & (graph.row_of(graph.dst) >= 0) & (graph.lag > 0)
    host = np.isin(graph.kind, (CALL, ORDER, HAND_OVER, LAUNCH))
    used = np.unique(line.class_[row[body]]).tolist()
    code = np.zeros(len(line.classes), np.int64)
    code[used] = np.arange(len(used)) + FIRST
    scaled = np.where(body, code[line.class_[row]], np.where(host, HOST, OTHER))
    return {
        "edge_source": graph.src.astype(np.uint32),
        "edge_target": graph.dst.astype(np.uint32),
        "edge_lag": graph.lag.astype(np.float64),
        "edge_what": scaled.astype(np.uint32),
        "point_delay": (graph.delay - np.where(_roots(graph), int(graph.at.min(initial=0)), 0)).astype(np.float64),
        "point_chip": _chips(line, graph),
    }, [line.classes[one] for one in used]


def _roots(graph: Graph) -> NDArray[np.bool_]:
    found = np.ones(len(graph.at), np.bool_)
    found[graph.dst] = False
    return found


def _chips(line: Timeline, graph: Graph) -> NDArray[np.uint32]:
    """0 for a point that is not of work; 2 c + 1 for a start and 2 c + 2 for an end on chip c."""
    points, work = graph.points, graph.points.work
    _, place = np.unique(line.process[work], return_inverse=True)
    found = np.zeros(len(graph.at), np.uint32)
    found[points.start(work)] = 2 * place + 1
    found[points.end(work)] = 2 * place + 2
    return found
