"""Turn work into patterns an expert sees at once: unfused attention, layout changes around convolutions, an optimizer
in pieces; each as rows, so that no other rule speaks about them again.

    unfused attention    a product, work on each score, softmax, again such work, a product; backward likewise
    layout changes       kernels that turn NCHW into NHWC and back around convolutions
    optimizer            kernels under `Optimizer.step`, or a function of `torch/optim`, that nothing fused
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import launching_ops, parents
from ridgeline.trace.intervals import cover, covered_ns
from ridgeline.trace.timeline import ANNOTATION, KERNEL, PYTHON, Longs, Rows, Timeline

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

    def claimed(self, line: Timeline) -> Mask:
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
    rows = np.flatnonzero(counted & line.of_kind(KERNEL) & line.named(LAYOUT))
    convolves = np.array([id == "convolution" for id in line.classes], np.bool_)
    other_work = counted & convolves[line.class_] & ~line.named(LAYOUT)
    return rows if other_work.any() else _none()


def _optimizer(line: Timeline, counted: Mask, steps: int) -> Rows:
    markers = ((ANNOTATION, STEPS), (PYTHON, OPTIM))
    some = [(np.flatnonzero(line.of_kind(kind)), pattern) for kind, pattern in markers]
    marks = np.concatenate([rows[line.named(pattern, rows)] for rows, pattern in some])
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
