"""Turn measured spans of work into phase and layer of a training step, and into patterns an expert sees at once.

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

A pattern claims its rows, so that no other rule speaks about them again:

    unfused attention    a product, work on each score, softmax, again such work, a product; backward likewise
    layout changes       kernels that turn NCHW into NHWC and back around convolutions
    optimizer            kernels under `Optimizer.step`, or a function of `torch/optim`, that nothing fused
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import counted_rows, launching_ops, parents
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
    by_name = line.match_names(BY_NAME, rows) & line.of_kind(KERNEL)[rows]
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
        rows = np.flatnonzero(line.match_names(pattern) & line.of_kind(HOST, ANNOTATION, PYTHON) & (line.rank == rank))
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
    named_rows = np.flatnonzero(line.match_names(pattern) & line.of_kind(HOST, ANNOTATION, PYTHON))
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
    attention = np.flatnonzero(line.of_class("attention")[rows])
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


BETWEEN = ("elementwise", "kernel-copy", "random", "softmax", "unknown")
REACH = 8  # kernels from a softmax to its products
PLAIN = re.compile(r"^aten::(mm|addmm|addmm_|_addmm_activation|linear)$")  # no product of heads
LAYOUT = re.compile(
    r"nchwToNhwc|nhwcToNchw|batched_transpose|SubTensorOpWith(Cast|Transform)|tensorTransform|NCHWToNHWC|NHWCToNCHW",
    re.IGNORECASE,
)
STEPS = re.compile(r"^Optimizer\.step#|^\W*optimizer([ _]step)?\W*$", re.IGNORECASE)
OPTIM = re.compile(r"(^|[/\\])(torch[/\\]optim|apex[/\\]optimizers|deepspeed[/\\]ops[/\\]adam)[/\\]\w+\.py\(\d+\): ")
FUSED = re.compile(r"multi_tensor|foreach|fused|apex|_opt_|triton", re.IGNORECASE)
MANY = 50  # kernels of an optimizer a step


def _none() -> Rows:
    return np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patterns:
    """Rows of work by pattern; a row is in one at most."""

    attention: Rows = field(default_factory=_none)
    """All spans of unfused attention."""
    products: Rows = field(default_factory=_none)
    """The matrix products among them."""
    blocks: int = 0
    layouts: Rows = field(default_factory=_none)
    optimizer: Rows = field(default_factory=_none)

    def claimed_rows(self, line: Timeline) -> Mask:
        """Which rows a pattern explains."""
        mask = np.zeros(len(line), np.bool_)
        for rows in (self.attention, self.layouts, self.optimizer):
            mask[rows] = True
        return mask


def patterns_of(line: Timeline, counted: Mask, steps: int) -> Patterns:
    """The patterns of counted work."""
    attention, products, blocks = _attention(line, counted)
    layouts = _layouts(line, counted)
    return Patterns(
        attention=attention, products=products, blocks=blocks, layouts=layouts,
        optimizer=_optimizer(line, counted, steps),
    )  # fmt: skip


def _attention(line: Timeline, counted: Mask) -> tuple[Rows, Rows, int]:
    ids = np.array(line.classes)
    work = np.flatnonzero(counted & line.of_kind(KERNEL))
    soft = np.flatnonzero(ids == "softmax")
    if not len(work) or not len(soft) or not np.isin(line.class_[work], soft).any():
        return _none(), _none(), 0
    order = work[np.lexsort((line.start_ns[work], line.tracks(work)))]
    track = line.tracks(order)
    class_ = ids[line.class_[order]]
    op = launching_ops(line, order)
    is_plain = np.array([bool(PLAIN.search(name)) for name in line.names], np.bool_)
    product = (class_ == "matmul") & ~((op >= 0) & is_plain[line.name[np.maximum(op, 0)]])
    small = np.isin(class_, BETWEEN)
    is_kept, is_attention, blocks = np.zeros(len(order), np.bool_), np.zeros(len(order), np.bool_), 0
    for at in np.flatnonzero(class_ == "softmax").tolist():
        before = _product_from(at, -1, (track, product, small))
        behind = _product_from(at, 1, (track, product, small))
        if before < 0 or behind < 0 or is_kept[at]:
            continue
        first, last = _widen_block(before, -1, (track, product)), _widen_block(behind, 1, (track, product))
        is_kept[first : last + 1] = True
        is_attention[first : last + 1] |= product[first : last + 1]
        blocks += 1
    return order[is_kept], order[is_attention], blocks


def _product_from(at: int, step: int, given: tuple[Longs, Mask, Mask]) -> int:
    """The first product from a softmax on, over work on its scores only; -1 when something else comes first."""
    track, product, small = given
    place = at + step
    for _ in range(REACH):
        if not 0 <= place < len(track) or track[place] != track[at]:
            return -1
        if product[place]:
            return place
        if not small[place]:
            return -1
        place += step
    return -1


def _widen_block(at: int, step: int, given: tuple[Longs, Mask]) -> int:
    """Backward has two products on each side: the next one as well if it touches."""
    track, product = given
    neighbour = at + step
    return neighbour if 0 <= neighbour < len(track) and track[neighbour] == track[at] and product[neighbour] else at


def _layouts(line: Timeline, counted: Mask) -> Rows:
    rows = np.flatnonzero(counted & line.of_kind(KERNEL) & line.match_names(LAYOUT))
    return rows if (counted & line.of_class("convolution") & ~line.match_names(LAYOUT)).any() else _none()


def _optimizer(line: Timeline, counted: Mask, steps: int) -> Rows:
    markers = ((ANNOTATION, STEPS), (PYTHON, OPTIM))
    some = [(np.flatnonzero(line.of_kind(kind)), pattern) for kind, pattern in markers]
    marks = np.concatenate([rows[line.match_names(pattern, rows)] for rows, pattern in some])
    rows = np.flatnonzero(counted & (line.launch >= 0) & line.of_kind(KERNEL))
    if not len(marks) or not len(rows):
        return _none()
    call = line.launch[rows]
    under = (
        covered_ns(cover(line.start_ns[marks], line.end_ns[marks]), line.start_ns[call], line.start_ns[call] + 1) > 0
    )
    small = np.isin(np.array(line.classes), ("elementwise", "kernel-copy", "reduction", "optimizer", "unknown", "norm"))
    is_fused = np.array([bool(FUSED.search(name[:400])) for name in line.names], np.bool_)
    optimizer_rows = rows[under & small[line.class_[rows]]]
    loose = optimizer_rows[~is_fused[line.name[optimizer_rows]]]
    return loose if len(loose) >= MANY * steps and len(loose) * 2 >= len(optimizer_rows) else _none()


def ops_of(line: Timeline, rows: Rows) -> set[int]:
    """The host ops around the launches of these spans, all of each stack."""
    above = parents(line)
    at = line.launch[rows]
    ops: set[int] = set()
    while len(at := np.unique(at[at >= 0])):
        at = above[at]
        ops |= set(at[at >= 0].tolist())
    return ops
