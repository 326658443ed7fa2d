"""What a finding is, the facts its rules look at, and the advice that fits what ran.

    share of step     time of the finding / span, mean over chips
    predicted gain    part of the span that would go: the timeline replayed with that one thing changed (`what_if`), and
                      not more than the formula each rule states, nor than the share; without a replay, the formula

A rule is a small function that yields findings; one that has nothing to say yields nothing. Advice is a table
(`advice.toml`): a topic, and for each software or vendor the words for it; the most particular entry wins, in the order
engine, framework, vendor, anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.breakdown import Breakdown
from ridgeline.trace.analysis.collectives import CollectiveSize, Talk
from ridgeline.trace.analysis.idle import Gaps
from ridgeline.trace.analysis.patterns import Patterns
from ridgeline.trace.analysis.roofline import OpRate, bytes_bound_ns
from ridgeline.trace.analysis.stragglers import RankReport
from ridgeline.trace.analysis.what_if import (
    GraphChange,
    Question,
    Sizes,
    apply,
    chosen_rows,
    faster,
    fuse_chains,
    no_launch_gaps,
    no_waits,
    reduction_passes,
    scale_rows,
    span_ns,
    unknown_sizes,
)
from ridgeline.trace.classes import Rules, parents
from ridgeline.trace.graph.dependency_graph import Graph, replay
from ridgeline.trace.intervals import cover
from ridgeline.trace.timeline import ANNOTATION, HOST, PYTHON, RUNTIME, Codes, Timeline

VLLM = re.compile(r"\bvllm::|_C_cache_ops::|gpu_model_runner|vllm/|execute_(new|context)_\d+", re.IGNORECASE)
SGLANG = re.compile(r"\bsgl_kernel\b|sglang|sgl_hip|TpModelWorker|ScheduleBatch", re.IGNORECASE)
ROCM = re.compile(r"^hip[A-Z]|\bCijk_|__amd_rocclr|ck_tile::|MIOpen|rccl", re.MULTILINE)
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFxGraph|torchinductor|^triton_(poi|red|per|tem)_", re.MULTILINE)
JAX = re.compile(r"\bPjitFunction|\bjit_\w+|XlaModule|hlo_module|PjRt", re.IGNORECASE)
ASCEND = re.compile(r"ascend|msprof|cann", re.IGNORECASE)
NO_BF16 = re.compile(r"V100|\bT4\b|RTX 20\d\d|2080|TITAN V|P100|P40|GTX", re.IGNORECASE)
NVIDIA, AMD, HUAWEI = "nvidia", "amd", "huawei"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What ran: each field empty where nothing says."""

    vendor: str = ""
    framework: str = ""
    engine: str = ""
    compiled: bool = False
    """Whether torch.compile made some of the kernels."""
    bf16: bool = True
    """Whether the chip's matrix unit takes bf16; TF32 came with it."""

    def says(self, topic: str) -> str:
        """The advice on a topic that fits this software best."""
        words = ADVICE[topic]
        keys = (self.engine, self.framework + "+compiled" * self.compiled, self.framework, self.vendor)
        return next((words[key] for key in keys if key and key in words), words[""])


def software_of(line: Timeline, chip: Chip | None) -> Software:
    """What a timeline was recorded of, by its format, its chips and the names in it."""
    names = "\n".join(name[:200] for name in line.names)
    about = line.about
    recorder = " ".join((about.format, *about.chips))
    vendor = (chip.vendor.lower() if chip else "") or _vendor(recorder, names)
    framework = "pytorch"
    if "xla" in about.format.lower() or "xplane" in about.format.lower() or JAX.search(names):
        framework = "jax"
    elif "mindspore" in about.format.lower() or re.search(r"^Default/\w", names, re.MULTILINE):
        framework = "mindspore"
    engine = "vllm" if VLLM.search(names) else "sglang" if SGLANG.search(names) else ""
    return Software(
        vendor=vendor, framework=framework, engine=engine, compiled=bool(COMPILED.search(names)),
        bf16=not NO_BF16.search(recorder) and not re.search(r"^(volta|turing)_", names, re.MULTILINE),
    )  # fmt: skip


def _vendor(told: str, names: str) -> str:
    if re.search(r"\bAMD|Instinct|MI\d{3}|Radeon", told) or ROCM.search(names):
        return AMD
    if ASCEND.search(told):
        return HUAWEI
    return NVIDIA if re.search(r"NVIDIA|Tesla|GeForce|RTX|\bcuda", told + names, re.IGNORECASE) else ""


ADVICE: Mapping[str, Mapping[str, str]] = {
    "launch": {
        "vllm": "drop --enforce-eager, so that steps replay captured graphs; capture sizes up to your batch",
        "sglang": "leave graphs on (no --disable-cuda-graph), with --cuda-graph-max-bs up to your batch",
        "jax": "one jit around the whole step, command buffers (--xla_gpu_enable_command_buffer), fewer jit boundaries",
        "mindspore": "graph mode with data sinking, so that a step is one launch",
        "pytorch+compiled": "compiled kernels are launched one by one from Python: mode='reduce-overhead' replays "
        "graphs, cpp_wrapper=True takes Python out; otherwise fuse, or make kernels larger",
        "huawei": "graph mode (torchair), TASK_QUEUE_ENABLE=2, cores bound to the process",
        "amd": "replay graphs (torch.compile mode='reduce-overhead', HIP graphs), fuse, or make kernels larger",
        "": "replay graphs (torch.compile mode='reduce-overhead', CUDA graphs), fuse, or make kernels larger",
    },
    "products": {
        "jax": "other shapes, xla_gpu_autotune_level=4, lower precision (bf16, fp8)",
        "amd": "hipBLASLt tuned for these shapes (PYTORCH_TUNABLEOP_ENABLED=1), AITER or CK kernels, lower precision",
        "huawei": "sizes in multiples of 16, NZ layouts, fused operators of torch_npu, lower precision",
        "": "other shapes, another kernel or library (tuned cuBLASLt, CUTLASS), lower precision",
    },
    "attention": {
        "jax": "jax.nn.dot_product_attention(implementation='cudnn'), or a Pallas kernel; wider heads",
        "amd": "try another kernel (AITER's, CK's flash-attention); wider heads, longer blocks of tokens",
        "huawei": "npu_fusion_attention; wider heads, longer blocks of tokens",
        "": "try another kernel ({other}); wider heads, longer blocks of tokens",
    },
    "unfused attention": {
        "jax": "jax.nn.dot_product_attention(implementation='cudnn') instead of einsum, softmax, einsum",
        "amd": "scaled_dot_product_attention, or AITER's or CK's flash-attention: one kernel that keeps scores on chip",
        "huawei": "torch_npu.npu_fusion_attention: one kernel that keeps scores on chip",
        "": "scaled_dot_product_attention (attn_implementation='sdpa' or 'flash_attention_2'): one kernel that keeps "
        "scores on chip",
    },
    "fuse": {
        "vllm": "leave compilation on (-O3), so that norms, activations and quantisation are fused",
        "sglang": "--enable-torch-compile, or the fused kernels of sgl_kernel and AITER",
        "jax": "one jit around them: XLA fuses what lies in one program",
        "pytorch+compiled": "what breaks the graph between them? (TORCH_LOGS=graph_breaks); fused norms and losses",
        "huawei": "fused operators of torch_npu (npu_rms_norm, npu_swiglu), or graph mode",
        "": "fuse them: torch.compile, or fused norms, activations, optimizers and losses",
    },
    "traffic": {
        "jax": "one jit around them: XLA fuses what lies in one program; donated buffers",
        "pytorch+compiled": "contiguous layouts, 16-byte loads, fewer broadcasts and casts; max-autotune",
        "": "compile or fuse them; contiguous layouts, 16-byte loads, fewer broadcasts and casts",
    },
    "overlap": {
        "vllm": "all-reduces fused with the norm behind them (-O3, fuse_allreduce_rms), fewer ranks a tensor and more "
        "replicas; experts: --enable-dbo overlaps two batches",
        "sglang": "all-reduces fused with the norm behind them (--enable-flashinfer-allreduce-fusion), fewer ranks a "
        "tensor and more replicas; experts: --enable-two-batch-overlap",
        "jax": "XLA's latency-hiding scheduler (--xla_gpu_enable_latency_hiding_scheduler=true; TPUs run fused "
        "collectives beside compute), or shardings that need no exchange here",
        "mindspore": "gradients in smaller fused parts (all_reduce_fusion_config, comm_fusion) that start in backward",
        "": "{own}",
    },
    "stacks": {
        "jax": "record Python as well (jax.profiler, python_tracer_level=1) to see what the host did",
        "": "record Python as well (with_stack=True) to see what the host did; often the garbage collector or logging",
    },
    "synchronisation": {
        "vllm": "asynchronous scheduling (--async-scheduling), and sampling on the chip: the host reads tokens back",
        "sglang": "the overlap scheduler (leave it on), and sampling on the chip: the host reads tokens back",
        "jax": "remove what makes the host wait (block_until_ready, float(), np.asarray of an array) or do it rarely",
        "": "remove what makes the host wait (.item(), .cpu(), nonzero, prints) or do it rarely",
    },
    "loader": {
        "jax": "prefetch to the device (grain, tf.data with prefetch), more workers; or prepare the data beforehand",
        "mindspore": "more num_parallel_workers, larger prefetch_size, data sinking",
        "": "more loader workers, prefetching, pinned memory; or prepare the data beforehand",
    },
    "layout": {
        "amd": "model.to(memory_format=torch.channels_last) and PYTORCH_MIOPEN_SUGGEST_NHWC=1: convolutions on NHWC",
        "": "model and inputs .to(memory_format=torch.channels_last): convolutions run on NHWC",
    },
    "compile": {
        "jax": "fixed shapes, so that jit compiles once; a persistent compilation cache",
        "": "warm up; fixed or marked dynamic shapes, so that nothing recompiles",
    },
}  # fmt: skip


LARGEST = 1_000_000  # points of a graph that is replayed for every finding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """A graph to be replayed, and the chips whose spans are added up."""

    graph: Graph
    rules: Rules
    chips: int

    def by(self, form: str) -> int:
        """Nanoseconds of all chips together that a question about everything saves."""
        return self.of_rows(form, chosen_rows(self.graph, self.rules, Question(text=form, form=form)))

    def of_rows(self, form: str, rows: NDArray[np.intp]) -> int:
        """The same for a question about some spans; 0 where there are none."""
        question = Question(text=form, form=form)
        if not len(rows):
            return 0
        return self._saved_ns(apply(GraphChange.none(self.graph), question, rows, unknown_sizes))

    def faster(self, classes: Sequence[str], factor: float) -> int:
        """The same for classes that take 1/factor of their time."""
        question = Question(text="", form="faster", what=tuple(classes))
        return self.faster_rows(chosen_rows(self.graph, self.rules, question), factor)

    def faster_rows(self, rows: NDArray[np.intp], factor: float) -> int:
        """The same for spans that take 1/factor of their time."""
        return self._saved_ns(faster(GraphChange.none(self.graph), rows, factor))

    def lasting(self, rows: NDArray[np.intp], kept: NDArray[np.float64]) -> int:
        """The same for spans of which each takes its own share of its time, from 0 to 1."""
        return self._saved_ns(scale_rows(GraphChange.none(self.graph), rows, kept))

    def in_passes(self, rows: NDArray[np.intp]) -> int:
        """The same for chains of spans that become one each, as long as the longest and its further reductions need."""
        return self._saved_ns(fuse_chains(GraphChange.none(self.graph), rows, True, unknown_sizes, reduction_passes))

    def fused_to(self, rows: NDArray[np.intp], share: float) -> int:
        """The same for chains of spans that become one each, in a share of the time they took."""
        line = self.graph.line

        def sizes(every: NDArray[np.intp]) -> NDArray[np.int64]:
            return np.maximum(1, (line.durations_ns(every) * share).astype(np.int64))

        return self._saved_ns(fuse_chains(GraphChange.none(self.graph), rows, False, sizes))

    def without_gaps_of(self, *ranks: int) -> int:
        """The same for hosts of some ranks that take no time."""
        return self._saved_ns(no_launch_gaps(GraphChange.none(self.graph), ranks))

    def without_waits(self) -> int:
        """The same for hosts that never wait for the device."""
        return self._saved_ns(no_waits(GraphChange.none(self.graph)))

    def _saved_ns(self, change: GraphChange) -> int:
        after = replay(change.graph, change.lag, change.delay)
        return (span_ns(self.graph, self.graph.at) - span_ns(self.graph, after)) * self.chips


def sizes_of(graph: Graph, chip: Chip | None) -> Sizes:
    """How long the recorded bytes of spans need on a chip."""

    def sizes(rows: NDArray[np.intp]) -> NDArray[np.int64]:
        return bytes_bound_ns(graph.line, rows, chip)

    return sizes


LEAST = 0.01  # of the span: less is not worth saying
MOST = 5  # spans named as evidence
STACK = 12  # host spans named over a gap
HIDDEN = 0.1  # of what a formula promises: a replay that gives less says that something else holds the step back
BEHIND = "; alone this gains little: the step waits for something else, or cannot do without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvidence:
    """One span that proves a finding."""

    row: int
    name: str
    start_ns: int
    duration_ns: int

    JSON = "span_id=row name start_us duration_us"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEvidence:
    """The longest gap of an idle finding: when the chip had nothing to do, and the host's stack meanwhile."""

    process: str
    start_ns: int
    end_ns: int
    host: tuple[SpanEvidence, ...]
    """Spans of the host that cover most of it, the outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that limits the time."""

    what: str
    evidence: tuple[SpanEvidence, ...]
    share_of_step: float
    predicted_gain: float
    action: str
    rule: str = ""
    """Name of the rule that found it."""
    gap: GapEvidence | None = None
    """Of a finding about an idle chip."""
    capture: bool = False
    """Whether it is of how the trace was taken, not of the step: told behind findings that gain something."""

    JSON = "rule what evidence share_of_step predicted_gain action gap"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a rule's formula promises, and what a replay gave, of all chips together; None without a replay."""

    formula_ns: float
    replayed_ns: float | None = None


def count(many: int, what: str) -> str:
    """A number of things.

    >>> count(1, "gap"), count(2345, "gap")
    ('1 gap', '2,345 gaps')
    """
    return f"{many:,} {what}{'' if many == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """What the rules look at."""

    line: Timeline
    counted: Mask
    rules: Rules
    parts: Breakdown
    gaps: Gaps
    rates: tuple[OpRate, ...]
    ranks: RankReport
    chip: Chip | None
    gains: Gains | None = None
    """None where the timeline is too large to be replayed for each finding."""
    patterns: Patterns = field(default_factory=Patterns)
    software: Software = Software()
    talk: Talk | None = None
    sizes: tuple[CollectiveSize, ...] = ()
    outliers: tuple[int, ...] = ()
    """Steps that took far longer than the others; rates leave them out."""
    guessed: str = ""
    """The model whose sizes price kernels, where the trace gave it away and nobody named it."""

    @property
    def span_ns(self) -> int:
        """Spans of all chips together, so that sums over chips divide by it."""
        return max(1, sum(row.times.span_ns for row in self.parts.chips))

    @property
    def steps(self) -> int:
        """Steps of all chips together; 1 where none is marked."""
        return max(1, len(self.parts.steps))

    def worth(self, lost_ns: float) -> bool:
        """Whether so much time, of all chips together, is worth a finding, and a replay."""
        return lost_ns >= LEAST * self.span_ns

    def group(self, id: str) -> Mask:
        """Which rows count and are of a group: compute, communication, copy."""
        in_group = np.array([self.rules.group_of(class_) == id for class_ in self.line.classes], np.bool_)
        return np.asarray(self.counted & in_group[self.line.class_])

    def of_class(self, *ids: str) -> Mask:
        """Which rows count and are of these classes."""
        in_classes = np.array([class_ in ids for class_ in self.line.classes], np.bool_)
        return np.asarray(self.counted & in_classes[self.line.class_])

    def union_ns(self, rows: NDArray[np.intp]) -> int:
        """Time in which at least one of these spans is open, chip by chip, all chips together."""
        process = self.line.process[rows]
        parts = (rows[process == number] for number in np.unique(process).tolist())
        return sum(cover(self.line.start_ns[part], self.line.end_ns[part]).length for part in parts)

    @property
    def above(self) -> Codes:
        """The innermost host span around each."""
        return parents(self.line)

    @property
    def ranks_seen(self) -> int:
        """Ranks that have a chip; processes of one rank are not ranks."""
        return len({row.rank for row in self.parts.chips}) if self.line.is_work.any() else 1

    def longest(self, rows: NDArray[np.intp]) -> tuple[int, ...]:
        """The longest of some rows."""
        order = np.argsort(-self.line.durations_ns(rows), kind="stable")[:MOST]
        return tuple(rows[order].tolist())

    def gap(self, places: NDArray[np.intp]) -> GapEvidence | None:
        """The longest of some gaps."""
        if not len(places):
            return None
        line, place = self.line, int(places[int(self.gaps.length[places].argmax())])
        end_row = int(self.gaps.ended[place])
        end = int(line.start_ns[end_row])
        start = end - int(self.gaps.length[place])
        host = np.flatnonzero(line.of_kind(HOST, RUNTIME, PYTHON, ANNOTATION) & (line.rank == line.rank[end_row]))
        inside = np.minimum(line.end_ns[host], end) - np.maximum(line.start_ns[host], start)
        over = host[inside * 2 >= end - start]
        over = over[np.argsort(-line.durations_ns(over), kind="stable")]
        return GapEvidence(
            process=line.processes[int(line.process[end_row])], start_ns=start, end_ns=end,
            host=self.evidence(over[-STACK:].tolist()),
        )  # fmt: skip

    def evidence(self, rows: Iterable[int]) -> tuple[SpanEvidence, ...]:
        """Rows of the timeline as spans with their names and times."""
        line = self.line
        return tuple(
            SpanEvidence(
                row=row,
                name=line.names[int(line.name[row])],
                start_ns=int(line.start_ns[row]),
                duration_ns=int(line.end_ns[row] - line.start_ns[row]),
            )
            for row in rows
        )

    def finding(self, what: str, rows: Iterable[int], lost_ns: float, gain: Gain, action: str) -> Finding:
        """A finding with its spans looked up and its times made shares."""
        spans = self.evidence(list(rows)[:MOST])
        promised_ns = min(gain.formula_ns, lost_ns)
        real = promised_ns if gain.replayed_ns is None else max(0.0, min(gain.replayed_ns, promised_ns))
        return Finding(
            what=what,
            evidence=spans,
            share_of_step=min(1.0, lost_ns / self.span_ns),
            predicted_gain=min(1.0, max(0.0, real) / self.span_ns),
            action=action + (BEHIND if real < HIDDEN * promised_ns else ""),
        )


Rule = Callable[[Facts], Iterator[Finding]]
