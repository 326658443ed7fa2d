"""Turn spans of work into the part of a training step they belong to: phase, and layer where it can be told.

    predicted      by the action of the schedule that covers the span (F forward; B, I, W backward), by its kind
    annotated      by the innermost annotation around its launch that names a phase: forward, backward, optimizer
    optimizer      launched inside `Optimizer.step` or `zero_grad`
    backward       launched from an autograd thread, inside an autograd node, or where an arrow from forward ends
    forward        launched by the host otherwise
    other          without a launch in the trace

A layer is a repetition. Where modules are recorded (`nn.Module: Block_3`) they say it; else the kernels of a phase are
searched for a period around attention kernels: the longest stretch that is the same before every one of them. Backward
work has the layer of the forward op whose arrow ends at its autograd node, where arrows are recorded.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.intervals import cover, covered
from ridgeline.trace.timeline import ANNOTATION, HOST, PYTHON, Mask, Timeline

PHASES = ("forward", "backward", "optimizer", "other")
FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
NAMED = (
    (OPTIMIZER, re.compile(r"^Optimizer\.(step|zero_grad)#|^\W*(optimizer([ _]step)?|zero_grad)\W*$", re.I)),
    (BACKWARD, re.compile(r"^\W*backward( pass)?\W*$|^autograd::engine::evaluate_|CompiledFunctionBackward", re.I)),
    (FORWARD, re.compile(r"^\W*forward( pass)?\W*$|\.forward$", re.I)),
)
AUTOGRAD = re.compile(r"autograd", re.IGNORECASE)
MODULE = re.compile(r"nn\.Module: (?!\w*Norm)\w*?(?:Layer|Block|Decoder|Encoder)\w*_(\d+)$")
DRAWN = re.compile(r"^layer (\d+) ")
ACTION = re.compile(r"^(?P<phase>[FBIWfb])\d")
NO_LAYER = -1

Bytes = NDArray[np.int8]


def predicted(line: Timeline) -> bool:
    """Whether the simulator drew a timeline, also when it was written to a file and read again."""
    drawn = any(kind.startswith(("exposed", "waiting", "optimizer", "overlapped")) for kind in line.kinds)
    return drawn and line.about.format in ("predicted", "Ridgeline")


def phases(line: Timeline, rows: NDArray[np.intp]) -> Bytes:
    """Phase of each of these rows of work, as a code into `PHASES`."""
    found = np.full(len(rows), OTHER, np.int8)
    if predicted(line):
        return _predicted(line, rows)
    at = _calls(line, rows)
    known = at >= 0
    if not known.any():
        return found
    own = at[known]
    code = np.full(len(own), FORWARD, np.int8)
    threads = np.array([bool(AUTOGRAD.search(name)) for name in line.streams], np.bool_)
    code[threads[line.stream[own]]] = BACKWARD
    code[_nodes(line, own) >= 0] = BACKWARD
    for phase, pattern in reversed(NAMED):  # what names an optimizer decides against what names backward
        code[_inside(line, own, pattern)] = phase
    found[known] = code
    return found


def _calls(line: Timeline, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """The call that launched each row, -1 for none; where there is no device, host ops are their own."""
    own = rows if not line.is_work.any() else np.full(len(rows), -1, np.int64)
    return np.where(line.launch[rows] >= 0, line.launch[rows], own).astype(np.int64)


def phases_at(line: Timeline, rank: int, times: NDArray[np.int64]) -> Bytes:
    """Phase of a rank's host at each instant: optimizer or backward where a span of that name is open, else forward."""
    found = np.full(len(times), FORWARD, np.int8)
    for phase, pattern in reversed(NAMED):
        codes = [code for code, name in enumerate(line.names) if pattern.search(name[:200])]
        rows = np.flatnonzero(np.isin(line.name, codes) & line.of_kind(HOST, ANNOTATION, PYTHON) & (line.rank == rank))
        if len(rows):
            found[covered(cover(line.starts_of(rows), line.ends_of(rows)), times, times + 1) > 0] = phase
    if not predicted(line):
        return found
    steps = np.flatnonzero(line.of_kind(ANNOTATION) & (line.rank == rank))
    words = np.array([_action(name) for name in line.names] or [OTHER], np.int8)
    place = np.searchsorted(line.starts_of(steps), times, side="right") - 1
    inside = (place >= 0) & (times <= line.end_ns[steps[np.maximum(place, 0)]]) if len(steps) else place < -1
    return np.where(inside, words[line.name[steps[np.maximum(place, 0)]]] if len(steps) else OTHER, OTHER).astype(
        np.int8
    )


def _predicted(line: Timeline, rows: NDArray[np.intp]) -> Bytes:
    found = np.full(len(rows), OTHER, np.int8)
    for code, prefix in ((FORWARD, "forward"), (BACKWARD, "backward"), (OPTIMIZER, "optimizer")):
        kinds = np.array([kind.startswith(prefix) for kind in line.kinds], np.bool_)
        found[kinds[line.kind[rows]]] = code
    steps = np.flatnonzero(line.of_kind(ANNOTATION))
    middle = line.starts_of(rows) + (line.ends_of(rows) - line.starts_of(rows)) // 2
    for process in np.unique(line.process[rows]).tolist():
        mine = steps[line.process[steps] == process]
        own = np.flatnonzero((line.process[rows] == process) & (found == OTHER))
        if not len(mine) or not len(own):
            continue
        place = np.searchsorted(line.starts_of(mine), middle[own], side="right") - 1
        inside = (place >= 0) & (middle[own] <= line.end_ns[mine[np.maximum(place, 0)]])
        words = np.array([_action(name) for name in line.names], np.int8)
        found[own[inside]] = words[line.name[mine[place[inside]]]]
    dp = np.array([name == "gradients" for name in line.names], np.bool_)[line.name[rows]]
    weights = np.array([name == "weights" for name in line.names], np.bool_)[line.name[rows]]
    found[dp & (found == OTHER)] = BACKWARD
    found[weights & (found == OTHER)] = OPTIMIZER
    return found


def _action(name: str) -> int:
    """Phase of an action of a schedule; of two that overlap, the first decides."""
    found = ACTION.match(name.lstrip("("))
    return OTHER if found is None else FORWARD if found["phase"] in "Ff" else BACKWARD


def _inside(line: Timeline, rows: NDArray[np.integer], pattern: re.Pattern[str]) -> Mask:
    """Which rows start inside a host span of that name on their own thread, or in an annotation of their rank."""
    codes = [code for code, name in enumerate(line.names) if pattern.search(name[:200])]
    named = np.flatnonzero(np.isin(line.name, codes) & line.of_kind(HOST, ANNOTATION, PYTHON))
    found = np.zeros(len(rows), np.bool_)
    if not len(named):
        return found
    count = max(1, len(line.streams))
    track = line.process.astype(np.int64) * count + line.stream
    start = line.starts_of(rows)
    for one in np.unique(track[named]).tolist():
        spans = named[track[named] == one]
        annotated = line.of_kind(ANNOTATION)[spans]
        for chosen, same in (
            (spans[~annotated], track[rows] == one),
            (spans[annotated], line.rank[rows] == line.rank[spans[0]]),
        ):
            if len(chosen):
                found |= same & (covered(cover(line.starts_of(chosen), line.ends_of(chosen)), start, start + 1) > 0)
    return found


def layers(line: Timeline, rows: NDArray[np.intp], phase: Bytes) -> NDArray[np.int32]:
    """Layer of each of these rows of work, counted from the input; -1 where it cannot be told."""
    if predicted(line):
        numbers = [int(match[1]) if (match := DRAWN.match(name)) else NO_LAYER for name in line.names]
        return np.array(numbers or [NO_LAYER], np.int32)[line.name[rows]]
    found = _by_modules(line, rows)
    if (found >= 0).any():
        return by_arrows(line, rows, found, phase)
    step, process = line.step[rows], line.process[rows]
    key = (process.astype(np.int64) * (int(step.max(initial=0)) + 2) + step + 1) * len(PHASES) + phase
    for one in np.unique(key).tolist():
        own = np.flatnonzero(key == one)
        which = one % len(PHASES)
        if which in (FORWARD, BACKWARD):
            found[own] = _periodic(line, rows[own], backwards=which == BACKWARD)
    return by_arrows(line, rows, found, phase)


def _nodes(line: Timeline, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """For each row the place in `Detail.forward` of the autograd node it starts in, on its own thread; -1 for none."""
    links, found = line.detail.forward, np.full(len(rows), -1, np.int64)
    if not len(links):
        return found
    count = max(1, len(line.streams))
    nodes = links.rows
    track, asked = (line.process[one].astype(np.int64) * count + line.stream[one] for one in (nodes, rows))
    start, end = line.start_ns, line.end_ns
    for one in np.unique(track).tolist():  # rows of a timeline are in order of their starts
        own, mine = np.flatnonzero(track == one), np.flatnonzero(asked == one)
        times = start[rows[mine]]
        place = np.searchsorted(start[nodes[own]], times, side="right") - 1
        node = own[np.maximum(place, 0)]
        found[mine] = np.where((place >= 0) & (times < end[nodes[node]]), node, -1)
    return found


def by_arrows(
    line: Timeline, rows: NDArray[np.intp], layer: NDArray[np.int32], phase: Bytes
) -> NDArray[np.int32]:  # fmt: skip
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
        (place < len(ahead)) & (line.start_ns[at[first]] < line.ends_of(op)) & (line.rank[at[first]] == line.rank[op])
    )
    found = layer.copy()
    found[behind[inside]] = layer[first[inside]]
    return found


def _by_modules(line: Timeline, rows: NDArray[np.intp]) -> NDArray[np.int32]:
    found = np.full(len(rows), NO_LAYER, np.int32)
    numbers = {code: int(match[1]) for code, name in enumerate(line.names) if (match := MODULE.search(name[:300]))}
    modules = np.flatnonzero(np.isin(line.name, list(numbers)) & line.of_kind(PYTHON, ANNOTATION))
    at = _calls(line, rows)
    start, end = line.start_ns, line.end_ns
    for rank in np.unique(line.rank[modules]).tolist():
        spans = modules[line.rank[modules] == rank]
        known = np.flatnonzero((at >= 0) & (line.rank[rows] == rank))
        place = np.searchsorted(start[spans], start[at[known]], side="right") - 1
        inside = (place >= 0) & (start[at[known]] < end[spans[np.maximum(place, 0)]])
        found[known[inside]] = [numbers[int(code)] for code in line.name[spans[place[inside]]].tolist()]
    return found


def _periodic(line: Timeline, rows: NDArray[np.intp], *, backwards: bool) -> NDArray[np.int32]:
    """Layers by repetition: the same names at the same distance around every attention kernel."""
    found = np.full(len(rows), NO_LAYER, np.int32)
    names = line.name[rows]
    attention = np.flatnonzero(np.array([id == "attention" for id in line.classes], np.bool_)[line.class_[rows]])
    if len(attention) < 2:
        return found
    anchors = attention[names[attention] == names[attention[0]]]
    distance = np.diff(anchors)
    if len(anchors) < 2 or not len(distance):
        return found
    period = int(np.bincount(distance).argmax())
    regular = np.concatenate([[True], distance == period])
    anchors = anchors[regular] if (regular.mean() > 0.6) else anchors[:0]
    if len(anchors) < 2:
        return found
    back = 0
    while back + 1 < period and anchors[0] - back - 1 >= 0:
        if len(np.unique(names[anchors - back - 1])) > 1:
            break
        back += 1
    for place, anchor in enumerate(anchors.tolist()):
        layer = len(anchors) - 1 - place if backwards else place
        found[max(0, anchor - back) : min(len(rows), anchor - back + period)] = layer
    return found
