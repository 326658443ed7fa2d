"""Turn measured spans of work into the part of a training step they belong to: phase, and layer where it can be told.

    annotated      by the innermost annotation around its launch that names a phase: forward, backward, optimizer
    optimizer      launched inside `Optimizer.step` or `zero_grad`
    backward       launched from an autograd thread, inside an autograd node, or where an arrow from forward ends; where
                   the trace shows none of them, kernels whose names say it (bwd, dgrad, wgrad)
    forward        launched by the host otherwise
    other          without a launch in the trace

A layer is a repetition. Where modules are recorded (`nn.Module: Block_3`) they say it; else the kernels of a phase are
searched for a period around attention kernels: the longest stretch that is the same before every one of them. Backward
work has the layer of the forward op whose arrow ends at its autograd node, where arrows are recorded.

A predicted timeline has both columns from the simulator, and nothing here is asked.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import counted_rows
from ridgeline.trace.intervals import cover, covered_ns
from ridgeline.trace.timeline import (
    ANNOTATION,
    BACKWARD,
    FORWARD,
    HOST,
    KERNEL,
    MOST_LAYERS,
    NO_LAYER,
    OPTIMIZER,
    OTHER,
    PHASES,
    PYTHON,
    UNKNOWN,
    Bytes,
    Layers,
    Longs,
    Rows,
    Timeline,
)

NAMED = (
    (OPTIMIZER, re.compile(r"^Optimizer\.(step|zero_grad)#|^\W*(optimizer([ _]step)?|zero_grad)\W*$", re.I)),
    (
        BACKWARD,
        re.compile(
            r"^\W*backward( pass)?\W*$|^autograd::engine::evaluate_|CompiledFunctionBackward"
            r"|^\w+Backward\d*$|^torch::autograd::(AccumulateGrad|CopyBackwards|CopySlices)$",
            re.I,
        ),
    ),
    (FORWARD, re.compile(r"^\W*forward( pass)?\W*$|\.forward$", re.I)),
)
BY_NAME = re.compile(r"(?<![a-z])(bwd|backward|dgrad|wgrad|wrw)(?![a-z])|Backward|Bwd|Grad(Input|Weight)|_grad_")
"""Kernels of a backward pass, by their names."""
AUTOGRAD = re.compile(r"autograd", re.IGNORECASE)
MODULE = re.compile(r"nn\.Module: (?!\w*Norm)\w*?(?:Layer|Block|Decoder|Encoder)\w*_(\d{1,9})$")


def mark_phases(line: Timeline) -> Timeline:
    """The timeline with phase and layer of every span of work; one that has them stays as it is."""
    if line.predicted or (line.phase != UNKNOWN).any():
        return line
    rows = np.flatnonzero(counted_rows(line))
    phase, layer = line.phase.copy(), line.layer.copy()
    phase[rows] = phases(line, rows)
    layer[rows] = layers(line, rows, phase[rows])
    return replace(line, phase=phase, layer=layer)


def phases(line: Timeline, rows: Rows) -> Bytes:
    """Phase of each of these rows of measured work, as a code into `PHASES`."""
    phase_of_row = np.full(len(rows), OTHER, np.int8)
    at = _calls(line, rows)
    has_node = at >= 0
    if not has_node.any():
        return _by_names(line, rows, phase_of_row)
    node_rows = at[has_node]
    code = np.full(len(node_rows), FORWARD, np.int8)
    threads = np.array([bool(AUTOGRAD.search(name)) for name in line.streams], np.bool_)
    code[threads[line.stream[node_rows]]] = BACKWARD
    code[_nodes(line, node_rows) >= 0] = BACKWARD
    for phase, pattern in reversed(NAMED):  # what names an optimizer decides against what names backward
        code[_inside(line, node_rows, pattern)] = phase
    phase_of_row[has_node] = code
    return phase_of_row if (code == BACKWARD).any() else _by_names(line, rows, phase_of_row)


def _by_names(line: Timeline, rows: Rows, found: Bytes) -> Bytes:
    """Where the host shows no backward pass, kernels whose names say it; without any host, the others are forward."""
    by_name = line.named(BY_NAME, rows) & line.of_kind(KERNEL)[rows]
    if not by_name.any():
        return found
    open_ = np.isin(found, (FORWARD, OTHER))
    return np.where(open_ & by_name, BACKWARD, np.where(found == OTHER, FORWARD, found)).astype(np.int8)


def _calls(line: Timeline, rows: Rows) -> Longs:
    """The call that launched each row, -1 for none; where there is no device, host ops are their own."""
    host_rows = rows if not line.is_work.any() else np.full(len(rows), -1, np.int64)
    return np.where(line.launch[rows] >= 0, line.launch[rows], host_rows).astype(np.int64)


def phases_at(line: Timeline, rank: int, times: Longs) -> Bytes:
    """Phase of a rank at each instant: of a prediction that of the open step of the schedule; else optimizer or
    backward where a host span of that name is open, and forward where none is."""
    if line.predicted:
        return _scheduled_phases(line, rank, times)
    phase_at = np.full(len(times), FORWARD, np.int8)
    for phase, pattern in reversed(NAMED):
        rows = np.flatnonzero(line.named(pattern) & line.of_kind(HOST, ANNOTATION, PYTHON) & (line.rank == rank))
        if len(rows):
            phase_at[covered_ns(cover(line.start_ns[rows], line.end_ns[rows]), times, times + 1) > 0] = phase
    return phase_at


def _scheduled_phases(line: Timeline, rank: int, times: Longs) -> Bytes:
    steps = np.flatnonzero(line.of_kind(ANNOTATION) & (line.rank == rank))
    if not len(steps):
        return np.full(len(times), OTHER, np.int8)
    place = np.searchsorted(line.start_ns[steps], times, side="right") - 1
    at = steps[np.maximum(place, 0)]
    return np.where((place >= 0) & (times <= line.end_ns[at]), line.phase[at], OTHER).astype(np.int8)


def _inside(line: Timeline, rows: NDArray[np.integer], pattern: re.Pattern[str]) -> Mask:
    """Which rows start inside a host span of that name on their own thread, or in an annotation of their rank."""
    named_rows = np.flatnonzero(line.named(pattern) & line.of_kind(HOST, ANNOTATION, PYTHON))
    mask = np.zeros(len(rows), np.bool_)
    if not len(named_rows):
        return mask
    track, row_tracks, start = line.tracks(named_rows), line.tracks(rows), line.start_ns[rows]
    for number in np.unique(track).tolist():
        spans = named_rows[track == number]
        is_annotation = line.of_kind(ANNOTATION)[spans]
        for chosen, same in (
            (spans[~is_annotation], row_tracks == number),
            (spans[is_annotation], line.rank[rows] == line.rank[spans[0]]),
        ):
            if len(chosen):
                mask |= same & (covered_ns(cover(line.start_ns[chosen], line.end_ns[chosen]), start, start + 1) > 0)
    return mask


def layers(line: Timeline, rows: Rows, phase: Bytes) -> Layers:
    """Layer of each of these rows of measured work, counted from the input; -1 where it cannot be told."""
    layer_of_row = _by_modules(line, rows)
    if (layer_of_row >= 0).any():
        return by_arrows(line, rows, layer_of_row, phase)
    step, process = line.step[rows], line.process[rows]
    key = (process.astype(np.int64) * (int(step.max(initial=0)) + 2) + step + 1) * len(PHASES) + phase
    for number in np.unique(key).tolist():
        group_rows = np.flatnonzero(key == number)
        which = number % len(PHASES)
        if which in (FORWARD, BACKWARD):
            layer_of_row[group_rows] = _periodic(line, rows[group_rows], backwards=which == BACKWARD)
    return by_arrows(line, rows, layer_of_row, phase)


def _nodes(line: Timeline, rows: NDArray[np.integer]) -> Longs:
    """For each row the place in `Detail.forward` of the autograd node it starts in, on its own thread; -1 for none."""
    links, node_of_row = line.detail.forward, np.full(len(rows), -1, np.int64)
    if not len(links):
        return node_of_row
    nodes = links.rows
    track, row_tracks = line.tracks(nodes), line.tracks(rows)
    start, end = line.start_ns, line.end_ns
    for number in np.unique(track).tolist():  # rows of a timeline are in order of their starts
        track_nodes, track_rows = np.flatnonzero(track == number), np.flatnonzero(row_tracks == number)
        times = start[rows[track_rows]]
        place = np.searchsorted(start[nodes[track_nodes]], times, side="right") - 1
        node = track_nodes[np.maximum(place, 0)]
        node_of_row[track_rows] = np.where((place >= 0) & (times < end[nodes[node]]), node, -1)
    return node_of_row


def by_arrows(line: Timeline, rows: Rows, layer: Layers, phase: Bytes) -> Layers:
    """The layers, those of backward work taken from the work that the forward op of its node launched."""
    at = _calls(line, rows)
    ahead = np.flatnonzero((at >= 0) & (phase == FORWARD) & (layer >= 0))
    behind = np.flatnonzero((at >= 0) & (phase == BACKWARD))
    if not len(ahead) or not len(behind) or not len(line.detail.forward):
        return layer
    node = _nodes(line, at[behind])
    behind, op = behind[node >= 0], line.detail.forward.values[node[node >= 0]]
    ahead = ahead[np.argsort(at[ahead], kind="stable")]  # rows of calls ascend in time
    place = np.searchsorted(at[ahead], op)
    first = ahead[np.minimum(place, len(ahead) - 1)]
    inside = (
        (place < len(ahead)) & (line.start_ns[at[first]] < line.end_ns[op]) & (line.rank[at[first]] == line.rank[op])
    )
    layers_ = layer.copy()
    layers_[behind[inside]] = layer[first[inside]]
    return layers_


def _by_modules(line: Timeline, rows: Rows) -> Layers:
    layer_of_row = np.full(len(rows), NO_LAYER, np.int16)
    matches = ((code, MODULE.search(name[:300])) for code, name in enumerate(line.names))
    numbers = {code: int(match[1]) for code, match in matches if match and int(match[1]) <= MOST_LAYERS}
    modules = np.flatnonzero(np.isin(line.name, list(numbers)) & line.of_kind(PYTHON, ANNOTATION))
    at = _calls(line, rows)
    start, end = line.start_ns, line.end_ns
    for rank in np.unique(line.rank[modules]).tolist():
        spans = modules[line.rank[modules] == rank]
        known_rows = np.flatnonzero((at >= 0) & (line.rank[rows] == rank))
        place = np.searchsorted(start[spans], start[at[known_rows]], side="right") - 1
        inside = (place >= 0) & (start[at[known_rows]] < end[spans[np.maximum(place, 0)]])
        layer_of_row[known_rows[inside]] = [numbers[int(code)] for code in line.name[spans[place[inside]]].tolist()]
    return layer_of_row


def _periodic(line: Timeline, rows: Rows, *, backwards: bool) -> Layers:
    """Layers by repetition: the same names at the same distance around every attention kernel."""
    layer_of_row = np.full(len(rows), NO_LAYER, np.int16)
    names = line.name[rows]
    attention = np.flatnonzero(np.array([id == "attention" for id in line.classes], np.bool_)[line.class_[rows]])
    if len(attention) < 2:
        return layer_of_row
    anchors = attention[names[attention] == names[attention[0]]]
    distance = np.diff(anchors)
    if len(anchors) < 2 or not len(distance):
        return layer_of_row
    period = int(np.bincount(distance).argmax())
    regular = np.concatenate([[True], distance == period])
    anchors = anchors[regular] if (regular.mean() > 0.6) else anchors[:0]
    if len(anchors) < 2:
        return layer_of_row
    back = 0
    while back + 1 < period and anchors[0] - back - 1 >= 0:
        if len(np.unique(names[anchors - back - 1])) > 1:
            break
        back += 1
    for place, anchor in enumerate(anchors.tolist()):
        layer = len(anchors) - 1 - place if backwards else place
        layer_of_row[max(0, anchor - back) : min(len(rows), anchor - back + period)] = layer
    return layer_of_row
