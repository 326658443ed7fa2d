"""Turn the annotations of an inference engine into its steps, and kernels of replayed graphs into what they compute.

    vLLM           execute_context_2(8155)_generation_37(37)                requests and tokens of both sorts
                   execute_8192_context_9(sq8155sk8430…)_generation_37(…)   with sums over the lengths: q, k, q q, q k
                   execute_new_2_cached_30                                  requests only
    SGLang         step[DECODE bs=32], step[EXTEND bs=4 toks=8192]
    TensorRT-LLM   [Executor] _forward_step 12: 0 ctx reqs, 32 gen reqs

A step's time on the chip goes from its first span to its last. Each request of a decode step gets a token from it, so

    TPOT ~ from the end of one decode step to the end of the next       TTFT >= from a prefill's call to its last span

both without what a request waits in queues, which no trace of a chip shows.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.units import DECIMAL
from ridgeline.ir.kernel import Kernel, stream_kernel
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.classes import GRAPH, parents
from ridgeline.trace.intervals import cover
from ridgeline.trace.timeline import ANNOTATION, HOST, KERNEL, RUNTIME, Codes, Rows, Timeline

PREFILL, DECODE, MIXED, IDLE = "prefill", "decode", "mixed", "idle"
_SUMS = r"(?:sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)|(\d+))?"
FORMS = (
    re.compile(rf"^execute_(?:(\d+)_)?context_(\d+)\({_SUMS}\)_generation_(\d+)\({_SUMS}\)"),
    re.compile(r"_forward_step (\d+): (\d+) ctx reqs, (\d+) gen reqs"),
    re.compile(r"^execute_new_(\d+)_cached_(\d+)"),
    re.compile(r"^step\[(\w+) bs=(\d+)(?:,? tok\w*=(\d+))?"),
)
"""How engines name a step; the first form that a trace has is read."""
GRAPH_SHARE = 0.5  # of a step's spans, from which on it is the replay of a graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Sums over the requests of one sort: tokens of queries, of keys, q q and q k; 0 where nobody says."""

    requests: int = 0
    queries: int = 0
    keys: int = 0
    squares: int = 0
    products: int = 0

    @property
    def scores(self) -> float:
        """Pairs of a query and a key it sees: q k less what a causal mask hides, q (q - 1) / 2."""
        return self.products - (self.squares - self.queries) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """One step of an engine."""

    rank: int
    kind: str
    context: Lengths
    generation: Lengths
    start_ns: int
    """When the host began it."""
    begin_ns: int
    end_ns: int
    """Its work on the chip: first start, last end."""
    busy_ns: int
    spans: int
    graph: bool
    """Whether most of it was the replay of a captured graph."""
    row: int
    """The annotation."""

    JSON = "rank step_kind=kind requests tokens start_us wall_us busy_us spans graph span_id=row"

    @property
    def wall_ns(self) -> int:
        """Nanoseconds from its first start on the chip to its last end."""
        return self.end_ns - self.begin_ns

    @property
    def tokens(self) -> int:
        return self.context.queries + self.generation.queries

    @property
    def requests(self) -> int:
        return self.context.requests + self.generation.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The steps of an engine, and what they come to."""

    steps: tuple[EngineStep, ...]

    JSON = """
        steps[:1000] prefill_steps decode_steps mixed_steps graph_hits mean_decode_batch tpot_us prefill_us
        tokens_per_s
    """

    @property
    def prefill_steps(self) -> int:
        return len(self.of(PREFILL))

    @property
    def decode_steps(self) -> int:
        return len(self.of(DECODE))

    @property
    def mixed_steps(self) -> int:
        return len(self.of(MIXED))

    @property
    def mean_decode_batch(self) -> float | None:
        """Requests of a decode step; None where there is none."""
        batches = [step.generation.requests for step in self.of(DECODE)]
        return sum(batches) / len(batches) if batches else None

    def of(self, *kinds: str) -> tuple[EngineStep, ...]:
        return tuple(step for step in self.steps if step.kind in kinds)

    @property
    def graph_hits(self) -> int:
        return sum(step.graph for step in self.steps)

    @property
    def tpot_ns(self) -> float | None:
        """Median from the end of a step that decodes to the end of the next on its rank; None for less than two."""
        distances_ns: list[int] = []
        for rank in {step.rank for step in self.steps}:
            ends = [step.end_ns for step in self.of(DECODE, MIXED) if step.rank == rank]
            distances_ns += np.diff(sorted(ends)).tolist()
        return float(np.median(distances_ns)) if distances_ns else None

    @property
    def prefill_ns(self) -> float | None:
        """Median from the call of a step with prompts to the end of its work: TTFT without queueing."""
        took = [step.end_ns - step.start_ns for step in self.of(PREFILL, MIXED)]
        return float(np.median(took)) if took else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens processed over the time from the first to the last end, of the rank with most steps."""
        if not self.steps:
            return None
        ranks = [step.rank for step in self.steps]
        rank_steps = [step for step in self.steps if step.rank == max(set(ranks), key=ranks.count)]
        span = max(step.end_ns for step in rank_steps) - min(step.begin_ns for step in rank_steps)
        return sum(step.tokens for step in rank_steps) * DECIMAL["G"] / span if span else None

    def layers(self, line: Timeline) -> set[int]:
        """Counts of the attention kernels of a name in each step: the layers of its model."""
        attention = np.array([id == "attention" for id in line.classes], np.bool_)[line.class_] & (line.launch >= 0)
        rows = np.flatnonzero(attention)
        at = line.start_ns[line.launch[rows]]
        counts = set()
        for step in self.steps:
            own = rows[(at >= line.start_ns[step.row]) & (at < line.end_ns[step.row]) & (line.rank[rows] == step.rank)]
            names = Counter(
                name for name in (line.names[code] for code in line.name[own].tolist()) if not PART.search(name)
            )
            counts |= {count for _, count in names.most_common(1)}
        return counts


def inference(line: Timeline, counted: Mask) -> Inference | None:
    """The steps of an inference engine; None where no annotation names one."""
    marks = np.flatnonzero(line.of_kind(ANNOTATION, HOST))
    names = np.unique(line.name[marks]).tolist()
    for form in FORMS:
        matches = {code: match for code in names if (match := form.search(line.names[code][:400]))}
        rows = marks[np.isin(line.name[marks], list(matches))]
        if len(rows):
            steps = tuple(_steps(line, counted, rows, [_lengths(form, matches[int(line.name[row])]) for row in rows]))
            return Inference(steps=steps) if steps else None
    return None


def _lengths(form: re.Pattern[str], found: re.Match[str]) -> tuple[Lengths, Lengths]:
    """What a name says of its requests: those with prompts, those that decode."""
    group = [int(text) if text and text.isdecimal() else 0 for text in found.groups()]
    if form is FORMS[0]:
        first, second = group[2:7], group[8:13]
        return _sums(group[1], first), _sums(group[7], second)
    if form is FORMS[1]:
        return Lengths(requests=group[1]), Lengths(requests=group[2], queries=group[2])
    if form is FORMS[2]:
        return Lengths(requests=group[0]), Lengths(requests=group[1], queries=group[1])
    decodes = found[1].upper() in ("DECODE", "TARGET_VERIFY", "IDLE")
    lengths = Lengths(requests=group[1], queries=group[2] or (group[1] if decodes else 0))
    return (Lengths(), lengths) if decodes else (lengths, Lengths())


def _sums(requests: int, told: Sequence[int]) -> Lengths:
    queries, keys, squares, products, tokens = told
    return Lengths(requests=requests, queries=queries or tokens, keys=keys, squares=squares, products=products)


def _steps(
    line: Timeline, counted: Mask, rows: Rows, lengths: Sequence[tuple[Lengths, Lengths]]
) -> Iterator[EngineStep]:
    graphs = line.match_names(GRAPH)
    launched_rows = np.flatnonzero(counted & (line.launch >= 0))
    at, rank = line.start_ns[line.launch[launched_rows]], line.rank[launched_rows]
    order = np.argsort(at, kind="stable")
    launched_rows, at, rank = launched_rows[order], at[order], rank[order]
    for row, (context, generation) in zip(rows.tolist(), lengths, strict=True):
        first, last = np.searchsorted(at, [line.start_ns[row], line.end_ns[row]])
        step_rows = launched_rows[first:last][rank[first:last] == line.rank[row]]
        if not len(step_rows):
            continue
        busy = cover(line.start_ns[step_rows], line.end_ns[step_rows])
        kind = MIXED if context.requests and generation.requests else PREFILL if context.requests else DECODE
        yield EngineStep(
            rank=int(line.rank[row]),
            kind=kind if context.requests or generation.requests else IDLE,
            context=context,
            generation=generation,
            start_ns=int(line.start_ns[row]),
            begin_ns=busy.first,
            end_ns=busy.last,
            busy_ns=busy.length,
            spans=len(step_rows),
            graph=bool(graphs[line.launch[step_rows]].mean() > GRAPH_SHARE),
            row=row,
        )


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
            return self._stream_kernel("query or key norm", width, 2)
        streams = {
            "norm": ("norm", model.hidden, 4),
            "rope": ("rope", model.query + model.keys, 2),
            "kernel-copy": ("cache write", 2 * model.keys, 2) if re.search(r"cache|store_kv|set_kv", name) else None,
            "elementwise": ("activation", 3 * model.ffn // model.tp, 1) if after in ("gate-up", "up") else None,
        }.get(id)
        return self._stream_kernel(*streams) if streams is not None and tokens and streams[1] else None

    def _stream_kernel(self, label: str, width: int, times: float) -> tuple[str, str, Kernel]:
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
    begins, ends = calls[line.match_names(BEGIN, calls)], calls[line.match_names(END, calls)]
    launching = calls[line.match_names(LAUNCHES, calls) & ~line.match_names(GRAPH, calls)]
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
    launched_rows = launched_rows[line.match_names(GRAPH, line.launch[launched_rows])]
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
