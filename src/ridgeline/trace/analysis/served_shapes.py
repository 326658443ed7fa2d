"""Turn kernels without recorded operands, those of replayed graphs, into what they compute: by a model or a capture.

Between two attention kernels of a model lie the same products in the same order, their sizes follow from the tokens:

    o, gate and up, down, qkv of the next layer          dense;        o, router, experts up, experts down, qkv   of MoE

A step is priced only where the count of attention kernels is the count of layers and that of products between them
fits; a step that does not fit has no rates, rather than wrong ones. Or the n-th launch of a capture, in the trace or
in files recorded when the engine started (`--capture PATH`), is the n-th span of its replay:

    capture    calls that launch, between StreamBeginCapture and StreamEndCapture of a thread, in ops with operands
    replay     the spans that one GraphLaunch launched, in the order they began
    the same   as many of both, and, where several captures have as many, the smallest whose tokens hold the step's
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.ir.kernel import Kernel, stream_kernel
from ridgeline.trace.analysis.inference import EngineStep, Inference
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.classes import GRAPH, parents
from ridgeline.trace.timeline import KERNEL, RUNTIME, Codes, Rows, Timeline

PART = re.compile(r"split_?k_?reduce|reduce_?kernel|finalize|scatter|_reduce_|combine", re.IGNORECASE)
"""Kernels that finish what the one before them began."""
FOUR = re.compile(r"mxfp4|nvfp4|fp4|int4|w4a|awq|gptq|marlin", re.IGNORECASE)
EIGHT = re.compile(r"fp8|e4m3|e5m2|f8f8|int8|w8a8|_i8", re.IGNORECASE)
FOUR_BYTES = 17 / 32  # of a weight of four bits with a scale of eight for 32 of them
RARE = 8  # kernels of attention that fewer than a layer of so many has prepare it
ACTS = 2.0  # bytes of an activation


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The sizes of a model that decide what its kernels compute; degrees of tensor parallelism divide heads and ffn."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    ffn: int = 0
    """Width of a dense feed-forward layer, 0 for none."""
    experts: int = 0
    chosen: int = 0
    expert_ffn: int = 0
    windows: tuple[int, ...] = ()
    """Tokens a query sees, by layer; 0 for all."""
    tp: int = 1

    @property
    def query(self) -> int:
        """Columns of the queries of a rank."""
        return self.heads * self.head_dim // self.tp

    @property
    def keys(self) -> int:
        """Columns of the keys, or of the values, of a rank."""
        return max(1, self.kv_heads // self.tp) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSpan:
    """A span of work with what it computes, by the model."""

    row: int
    op: str
    operands: str
    kernel: Kernel
    call: tuple[int, int]
    """Spans of one call share it."""


def priced_spans(line: Timeline, counted: Mask, found: Inference | None, model: ServedModel) -> tuple[PricedSpan, ...]:
    """What the kernels of all steps compute; nothing for a step that does not fit the model."""
    if found is None:
        return ()
    launched_rows = np.flatnonzero(counted & (line.launch >= 0) & line.of_kind(KERNEL))
    at = line.start_ns[line.launch[launched_rows]]
    priced_rows: list[PricedSpan] = []
    for step in found.steps:
        inside = (
            (at >= line.start_ns[step.row]) & (at < line.end_ns[step.row]) & (line.rank[launched_rows] == step.rank)
        )
        step_rows = launched_rows[inside]
        priced_rows += _of_step(line, step_rows[np.argsort(line.start_ns[step_rows], kind="stable")], step, model)
    return tuple(priced_rows)


def _of_step(line: Timeline, rows: Rows, step: EngineStep, model: ServedModel) -> list[PricedSpan]:
    classes = [line.classes[code] for code in line.class_[rows].tolist()]
    names = [line.names[code] for code in line.name[rows].tolist()]
    parts = [bool(PART.search(name)) for name in names]
    name_counts = Counter(names)
    anchors = [
        place
        for place, id in enumerate(classes)
        if id == "attention" and not parts[place] and name_counts[names[place]] * RARE >= model.layers
        and not (place and classes[place - 1] == "attention")
    ]  # fmt: skip
    if len(anchors) != model.layers or not step.tokens:
        return []
    products = [place for place, id in enumerate(classes) if id == "matmul" and not parts[place]]
    layer_labels = [
        products_of(model, len([product for product in products if low < product < high]))
        for low, high in pairwise(anchors)
    ]
    head = [product for product in products if product < anchors[0]]
    tail = [product for product in products if product > anchors[-1]]
    inner = layer_labels[0] if layer_labels else ()
    if not inner or any(labels != inner for labels in layer_labels):
        return []
    head_labels = dict(zip(head[-_queries(inner) :], inner[-_queries(inner) :], strict=False))
    for low, high in pairwise(anchors):
        head_labels.update(zip([product for product in products if low < product < high], inner, strict=True))
    last = inner[: len(inner) - _queries(inner)]
    head_labels.update(zip(tail, (*last, "output"), strict=False))
    pricing = _Pricing(model, step)
    layer = -1
    spans, product, norms = [], "", 0
    for place, row in enumerate(rows.tolist()):
        layer += place in anchors
        if place in head_labels:
            product, norms = head_labels[place], 0
        kernel = pricing.of(classes[place], head_labels.get(place, ""), product, max(layer, 0), (names[place], norms))
        norms += classes[place] == "norm"
        if kernel is not None and not (parts[place] and classes[place] in ("matmul", "attention")):
            call = (step.row, row)
            spans.append(PricedSpan(row=row, op=kernel[0], operands=kernel[1], kernel=kernel[2], call=call))
        elif parts[place] and spans and classes[place] in ("matmul", "attention"):
            spans.append(replace(spans[-1], row=row))
    return spans


def _queries(inner: Sequence[str]) -> int:
    return sum(label in ("qkv", "q", "k", "v") for label in inner)


def products_of(model: ServedModel, count: int) -> tuple[str, ...]:
    """The products between two attention kernels, by how many there are; empty where no order is known.

    >>> sizes = dict(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, vocab=32, ffn=16)
    >>> products_of(ServedModel(name="x", **sizes), 4)
    ('o', 'gate-up', 'down', 'qkv')
    """
    if model.experts:
        return {5: ("o", "router", "experts up", "experts down", "qkv")}.get(count, ())
    return {
        4: ("o", "gate-up", "down", "qkv"),
        5: ("o", "gate", "up", "down", "qkv"),
        6: ("o", "gate-up", "down", "q", "k", "v"),
        7: ("o", "gate", "up", "down", "q", "k", "v"),
    }.get(count, ())


class _Pricing:
    def __init__(self, model: ServedModel, step: EngineStep) -> None:
        self.model, self.step = model, step

    def of(
        self, id: str, product: str, after: str, layer: int, kernel: tuple[str, int]
    ) -> tuple[str, str, Kernel] | None:
        """Label, operands and kernel: ``product`` where it is one, ``after`` the last product before it."""
        name, place = kernel
        if product:
            return self._product(product, name)
        if id == "attention":
            return self._attention(layer)
        tokens, model = self.step.tokens, self.model
        if id == "norm" and after in ("qkv", "q", "k", "v"):
            width = model.query if place == 0 else model.keys
            return self._moved("query or key norm", width, 2)
        streams = {
            "norm": ("norm", model.hidden, 4),
            "rope": ("rope", model.query + model.keys, 2),
            "kernel-copy": ("cache write", 2 * model.keys, 2) if re.search(r"cache|store_kv|set_kv", name) else None,
            "elementwise": ("activation", 3 * model.ffn // model.tp, 1) if after in ("gate-up", "up") else None,
        }.get(id)
        return self._moved(*streams) if streams is not None and tokens and streams[1] else None

    def _moved(self, label: str, width: int, times: float) -> tuple[str, str, Kernel]:
        tokens = self.step.tokens
        return label, f"{tokens}x{width}", stream_kernel(tokens * width * ACTS * times, "bf16")

    def _product(self, product: str, name: str) -> tuple[str, str, Kernel]:
        model, tokens = self.model, self.step.tokens
        shape = {
            "o": (model.query, model.hidden), "gate-up": (model.hidden, 2 * model.ffn // model.tp),
            "gate": (model.hidden, model.ffn // model.tp), "up": (model.hidden, model.ffn // model.tp),
            "down": (model.ffn // model.tp, model.hidden), "qkv": (model.hidden, model.query + 2 * model.keys),
            "q": (model.hidden, model.query), "k": (model.hidden, model.keys), "v": (model.hidden, model.keys),
            "router": (model.hidden, model.experts), "output": (model.hidden, model.vocab // model.tp),
            "experts up": (model.hidden, 2 * model.expert_ffn // model.tp),
            "experts down": (model.expert_ffn // model.tp, model.hidden),
        }  # fmt: skip
        k, n = shape[product]
        rows = self.step.requests if product == "output" else tokens
        times, tables = 1, 1
        if product.startswith("experts"):
            times, tables = model.chosen, min(model.experts, tokens * model.chosen)
        weight = FOUR_BYTES if FOUR.search(name) else 1.0 if EIGHT.search(name) else 2.0
        kernel = Kernel(
            op="gemm",
            dtype="fp8" if weight == 1.0 else "bf16",
            dims={"m": rows * times, "n": n, "k": k},
            moved=rows * times * (k + n) * ACTS + tables * k * n * weight,
        )
        return f"{product} product", f"{rows * times}x{k} {k}x{n}", kernel

    def _attention(self, layer: int) -> tuple[str, str, Kernel] | None:
        model, step = self.model, self.step
        window = model.windows[layer % len(model.windows)] if model.windows else 0
        scores = keys = 0.0
        for lengths in (step.context, step.generation):
            if lengths.requests and not lengths.products:
                return None
            seen = lengths.scores
            if window and lengths.requests:
                seen = min(seen, lengths.queries * window)
            scores += seen
            keys += min(lengths.keys, lengths.requests * window + lengths.queries) if window else lengths.keys
        dims = {"pairs": scores, "head_dim": model.query}
        size = (step.tokens * 2 * model.query + keys * 2 * model.keys) * ACTS
        width = f"{step.tokens}x{model.heads // model.tp}x{model.head_dim}"
        return (
            "attention",
            f"{width} {round(keys)}x{model.keys}",
            Kernel(op="attention_forward", dtype="bf16", dims=dims, moved=size),
        )


BEGIN = re.compile(r"StreamBeginCapture", re.IGNORECASE)
END = re.compile(r"StreamEndCapture", re.IGNORECASE)
LAUNCHES = re.compile(
    r"Launch(Cooperative)?Kernel|ModuleLaunch|Memcpy\w*Async|MemcpyWithStream|Memset\w*Async", re.IGNORECASE
)
UP = 6  # ops looked at above a launch until one has a formula and shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedOp:
    """The op around a captured launch; empty where none has a formula and operands."""

    call: int
    op: str = ""
    operands: str = ""
    kernel: Kernel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The launches of one captured graph, in order."""

    launches: tuple[CapturedOp, ...]
    tokens: int
    """First dimension that most of its operands share, 0 for none."""


def captures(line: Timeline) -> tuple[Capture, ...]:
    """The graphs that were captured while a timeline was recorded."""
    calls = np.flatnonzero(line.of_kind(RUNTIME))
    begins, ends = calls[line.named(BEGIN, calls)], calls[line.named(END, calls)]
    launching = calls[line.named(LAUNCHES, calls) & ~line.named(GRAPH, calls)]
    if not len(begins) or not len(ends):
        return _whole_capture(line, launching)
    above = parents(line)
    captures_ = []
    for begin in begins.tolist():
        track = line.tracks(np.array([begin]))[0]
        later = ends[(line.tracks(ends) == track) & (line.start_ns[ends] >= line.end_ns[begin])]
        if not len(later):
            continue
        track_launches = launching[line.tracks(launching) == track]
        start = line.start_ns[track_launches]
        track_launches = track_launches[(start >= line.end_ns[begin]) & (start < line.start_ns[later[0]])]
        if len(track_launches):
            captures_.append(_capture(line, track_launches, above))
    return tuple(captures_)


def _whole_capture(line: Timeline, launching: Rows) -> tuple[Capture, ...]:
    """A file that shows a capture without its begin and end: the launches of which nothing ran."""
    launching = launching[~np.isin(launching, line.launch)]
    if len(launching) < 2:
        return ()
    tracks = line.tracks(launching)
    busiest = np.bincount(np.unique(tracks, return_inverse=True)[1]).argmax()
    return (_capture(line, launching[tracks == np.unique(tracks)[busiest]], parents(line)),)


def _capture(line: Timeline, calls: Rows, above: Codes) -> Capture:
    launches, firsts = [], Counter[int]()
    for call in calls.tolist():
        at, annotation = int(above[call]), None
        for _ in range(UP):
            if at < 0:
                break
            code = int(line.detail.shape.at(np.array([at]))[0])
            work = op_kernel(line.names[line.name[at]], line.detail.shapes[code]) if code >= 0 else None
            if work is not None:
                shape = line.detail.shapes[code]
                annotation = CapturedOp(call=at, op=line.names[line.name[at]], operands=shape.words(), kernel=work)
                firsts.update([dims[0] for dims in shape.dims[:1] if len(dims) > 1 and isinstance(dims[0], int)])
                break
            at = int(above[at])
        launches.append(annotation or CapturedOp(call=call))
    return Capture(launches=tuple(launches), tokens=firsts.most_common(1)[0][0] if firsts else 0)


def replayed_spans(
    line: Timeline, counted: Mask, known: Sequence[Capture], engine: Inference | None
) -> tuple[PricedSpan, ...]:
    """What the spans of every replay compute, by the capture it is the replay of; nothing where none fits."""
    if not known:
        return ()
    launched_rows = np.flatnonzero(counted & (line.launch >= 0))
    launched_rows = launched_rows[line.named(GRAPH, line.launch[launched_rows])]
    spans: list[PricedSpan] = []
    for call in np.unique(line.launch[launched_rows]).tolist():
        rows = launched_rows[line.launch[launched_rows] == call]
        rows = rows[np.argsort(line.start_ns[rows], kind="stable")]
        chosen = _fitting(known, len(rows), _tokens(line, call, engine))
        for row, op in zip(rows.tolist(), chosen.launches, strict=True) if chosen is not None else ():
            if op.kernel is not None:
                call_ids = (call, op.call)
                spans.append(PricedSpan(row=row, op=op.op, operands=op.operands, kernel=op.kernel, call=call_ids))
    return tuple(spans)


def _tokens(line: Timeline, call: int, engine: Inference | None) -> int:
    """Tokens of the step in which a call was made, 0 where nobody says."""
    at = int(line.start_ns[call])
    for step in engine.steps if engine is not None else ():
        if line.start_ns[step.row] <= at < line.end_ns[step.row]:
            return step.tokens
    return 0


def _fitting(known: Sequence[Capture], spans: int, tokens: int) -> Capture | None:
    """The capture of a replay with so many spans; None where it cannot be told."""
    fitting = [capture for capture in known if len(capture.launches) == spans]
    if len({capture.launches for capture in fitting}) <= 1:
        return fitting[0] if fitting else None
    holding = [capture for capture in fitting if capture.tokens >= tokens > 0]
    return min(holding, key=lambda one: one.tokens) if holding else None
