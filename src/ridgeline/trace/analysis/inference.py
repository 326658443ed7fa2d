"""Turn the annotations of an inference engine into its steps: prefill or decode, tokens, batch, replayed graph or not.

    vLLM           execute_context_2(8155)_generation_37(37)                requests and tokens of both sorts
                   execute_8192_context_9(sq8155sk8430…)_generation_37(…)   with sums over the lengths: q, k, q q, q k
                   execute_new_2_cached_30                                  requests only
    SGLang         step[DECODE bs=32], step[EXTEND bs=4 toks=8192]
    TensorRT-LLM   [Executor] _forward_step 12: 0 ctx reqs, 32 gen reqs

A step's time on the chip goes from its first span to its last. Each request of a decode step gets a token from it, so

    TPOT ~ from the end of one decode step to the end of the next       TTFT >= from a prefill's call to its last span

both without what a request waits in queues, which no trace of a chip shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.units import DECIMAL
from ridgeline.trace.classes import GRAPH
from ridgeline.trace.intervals import cover
from ridgeline.trace.timeline import ANNOTATION, HOST, Rows, Timeline

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
    graphs = line.named(GRAPH)
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
