"""Turn ops with recorded shapes into rates, and rates into efficiency against the roofline of a chip.

    achieved      flops / t and bytes / t, with t the time of all kernels the op launched
    roof          t_min = max(flops / peak, bytes / bandwidth);   efficiency = t_min / t
    bound         compute or memory, whichever term of the roof is larger
    reachable     0.92 of the best rate anybody measured on the chip, as a share of its peak (`reachable.toml`, written
                  by `python -m tools docs reachable`): shapes of real steps are seldom the best ones. Without a
                  measurement 75 % of the compute roof, 80 % of the memory roof

An efficiency above 1 says that less was moved than counted: operands shared or still in a cache. The peak is the data
sheet's dense one for the format of the first operand; fp32 products run on the matrix unit's tf32
when the kernel's name says so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.documents import JsonObject
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.device_names import chip_id, unnamed_chip_id
from ridgeline.hardware.load import chip as catalog_chip
from ridgeline.ir.kernel import Kernel
from ridgeline.trace.analysis.inference import PricedSpan
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.classes import parents
from ridgeline.trace.intervals import group_rows
from ridgeline.trace.read.kernel_counters import KernelCounters
from ridgeline.trace.timeline import HOST, KERNEL, About, Codes, Longs, Rows, Timeline

LARGEST_MEMORY = 2**62  # bytes


def chip_of(about: About, named: str | Chip | None = None) -> Chip | None:
    """The chip a trace ran on: the one named, else the one its device name means, else None."""
    if named is not None:
        return named if isinstance(named, Chip) else catalog_chip(named)
    properties = about.properties.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    device: JsonObject = first if isinstance(first, dict) else {}
    size = device.get("totalGlobalMem")
    memory = size if isinstance(size, int) and 0 < size < LARGEST_MEMORY else 0
    if about.chips:
        id = chip_id(about.chips[0], memory)
    else:
        version = (device.get("computeMajor"), device.get("computeMinor"))
        id = unnamed_chip_id(version, device.get("numSms"), memory)
    return catalog_chip(id) if id else None


TABLE = Path(__file__).parent / "reachable.toml"
ASSUMED = {"compute": 0.75, "memory": 0.8}  # of the roof: what good kernels reach
USUAL = 0.92  # of the best shape
SAME = {"fp16": "bf16", "bf16": "fp16"}  # one unit, one rate


@cache
def _shares() -> Mapping[str, Mapping[str, float]]:
    return {id: entry["share"] for id, entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["chip"].items()}


def reachable(chip: str | None, dtype: str, bound: str) -> float:
    """Efficiency good kernels reach on a chip (its id) in a format, where this bounds them."""
    shares = _shares().get(chip or "", {})
    best = shares.get("memory") if bound == "memory" else shares.get(dtype, shares.get(SAME.get(dtype, ""), None))
    return ASSUMED[bound] if best is None else USUAL * best


TF32 = re.compile(r"tf32|s1688|16816", re.IGNORECASE)
FEW_TOKENS = 0.5  # of the memory roof: attention over few tokens
SOFTMAX = 64  # columns of a head whose products take as long as the exponentials of its scores on Hopper
UP = 6  # ops looked at above a launch until one has a formula and shapes
LONGEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRate:
    """One op with one set of operands: all its calls together, one chip or several."""

    op: str
    operands: str
    dtype: str
    class_: str
    calls: int
    total_ns: int
    flops: float
    """Of one call."""
    size_bytes: float
    """Of one call."""
    bound: str | None
    """None without a chip to compare with."""
    efficiency: float | None
    rows: tuple[int, ...]
    """The longest calls, as rows of the timeline."""
    chip: str | None = None
    by_model: bool = False
    """Whether a model's sizes or the capture of a graph tell the work: rows are then kernels, not ops."""

    JSON = """
        op operands dtype class calls total_us tflops_per_s=flops_per_s/T gbytes_per_s=bytes_per_s/G flops
        bytes=size_bytes bound efficiency span_ids=rows by_model
    """

    @property
    def flops_per_s(self) -> float:
        return self.flops * self.calls / (self.total_ns / DECIMAL["G"])

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes * self.calls / (self.total_ns / DECIMAL["G"])

    @property
    def reachable(self) -> float:
        """Efficiency good kernels reach on this chip, see `reachable`; of attention

            of products * d / (d + 64)        d = size of a head; a score needs an exponential beside its 4 d flops

        because the exponential unit is busy as long as the matrix unit at d = 64 (16 a cycle and core on Hopper); where
        its few tokens make it bound by memory, half of that roof.
        """
        if self.class_ != "attention":
            return reachable(self.chip, self.dtype, self.bound or "compute")
        if self.bound == "memory":
            return FEW_TOKENS
        width = int(self.operands.split(" ")[0].rsplit("x", 1)[-1] or 128)
        return reachable(self.chip, self.dtype, "compute") * width / (width + SOFTMAX)

    @property
    def roof_ns(self) -> float | None:
        """Time the roofline allows for all calls."""
        return None if self.efficiency is None else self.efficiency * self.total_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRate:
    """How near the roofline a class ran, what bounds most of it, and how near good kernels come.

    total_ns   nanoseconds of the ops that say so, on all chips and in all steps
    """

    efficiency: float
    bound: str
    reachable: float
    total_ns: float = 0.0

    @classmethod
    def of(cls, rates: Sequence[OpRate]) -> ClassRate:
        """Ops with a roof, together."""
        times = [(min(rate.roof_ns or 0.0, rate.total_ns), rate) for rate in rates]
        roof, good = sum(roof for roof, _ in times), sum(roof / rate.reachable for roof, rate in times)
        spent: dict[str, float] = {}
        for rate in rates:
            spent[rate.bound or ""] = spent.get(rate.bound or "", 0.0) + rate.total_ns
        bound = max(spent, key=lambda name: spent[name])
        total = sum(rate.total_ns for rate in rates)
        return cls(efficiency=roof / total, bound=bound, reachable=roof / good if good else 1.0, total_ns=total)

    @classmethod
    def of_memory(cls, efficiency: float) -> ClassRate:
        """A class bound by memory, whose good kernels reach what is assumed of any chip."""
        return cls(efficiency=efficiency, bound="memory", reachable=ASSUMED["memory"])


def op_rates(line: Timeline, counted: Mask, chip: Chip | None, priced: Sequence[PricedSpan] = ()) -> tuple[OpRate, ...]:
    """Rates of all ops whose shapes were recorded, and of spans whose work a model tells, longest first."""
    recorded_rates = _recorded_rates(line, counted, chip, np.array([span.row for span in priced], np.intp))
    return tuple(sorted((*recorded_rates, *_by_model(line, chip, priced)), key=lambda rate: -rate.total_ns))


def _recorded_rates(line: Timeline, counted: Mask, chip: Chip | None, told: Rows) -> tuple[OpRate, ...]:
    """Rates of ops with recorded shapes, without the spans of which something else tells the work."""
    work = np.flatnonzero(counted & (line.launch >= 0) & line.of_kind(KERNEL))
    if not len(line.detail.shape):
        return ()
    if len(work):
        work = work[~np.isin(work, told)]
        op, code = _priced_ops(line, work)
        has_op = op >= 0
        work, op, code = work[has_op], op[has_op], code[has_op]
    elif not line.is_work.any():
        work = _host_ops(line, np.flatnonzero(counted & line.of_kind(HOST)))
        op, code = work.astype(np.int32), line.detail.shape.at(work).astype(np.int64)
    if not len(work):
        return ()
    duration = line.end_ns[work] - line.start_ns[work]
    key = line.name[op].astype(np.int64) * max(1, len(line.detail.shapes)) + code
    return tuple(
        _rate(line, chip, work[group], op[group], int(code[group[0]]), duration[group]) for group in group_rows(key)
    )


def _by_model(line: Timeline, chip: Chip | None, priced: Sequence[PricedSpan]) -> Iterator[OpRate]:
    groups: dict[tuple[str, str, float], list[PricedSpan]] = {}
    for span in priced:
        groups.setdefault((span.op, span.operands, span.kernel.bytes), []).append(span)
    for (op, operands, _), spans in groups.items():
        rows = np.array([span.row for span in spans], np.intp)
        duration = line.durations_ns(rows)
        calls = len({span.call for span in spans})
        total = max(1, int(duration.sum()))
        work = spans[0].kernel
        bound, roof = _roof(work, work.dtype, chip)
        longest = line.longest(rows, LONGEST)
        yield OpRate(
            op=op, operands=operands, dtype=work.dtype, class_=line.classes[int(line.class_[longest[0]])], calls=calls,
            total_ns=total, flops=work.flops, size_bytes=work.bytes, bound=bound,
            efficiency=None if roof is None else roof * DECIMAL["G"] * calls / total, rows=tuple(longest.tolist()),
            by_model=True, chip=chip.id if chip else None,
        )  # fmt: skip


def bytes_bound_ns(line: Timeline, rows: Rows, chip: Chip | None) -> Longs:
    """What the bytes of each span's op need at full bandwidth, shared among the op's spans; 0 where unknown."""
    bound_ns = np.zeros(len(rows), np.int64)
    if chip is None or chip.hbm.bandwidth is None or not len(line.detail.shape) or not len(rows):
        return bound_ns
    launched_rows = np.flatnonzero(line.launch[rows] >= 0)
    op, code = _priced_ops(line, rows[launched_rows])
    known_places = np.flatnonzero(op >= 0)
    _, inverse, counts = np.unique(op[known_places], return_inverse=True, return_counts=True)
    for place, share in zip(known_places.tolist(), counts[inverse].tolist(), strict=True):
        kernel = op_kernel(line.names[int(line.name[op[place]])], line.detail.shapes[int(code[place])])
        if kernel is not None:
            bound_ns[launched_rows[place]] = round(kernel.bytes / chip.hbm.bandwidth.value * DECIMAL["G"] / share)
    return bound_ns


def _priced_ops(line: Timeline, work: Rows) -> tuple[Codes, Longs]:
    """For each span of work the nearest op above its launch that has a formula, and the code of its shape."""
    above = parents(line)
    op_of_work = np.full(len(work), -1, np.int32)
    code = np.full(len(work), -1, np.int64)
    at = above[line.launch[work]]

    @cache
    def has_formula(name: int, shape: int) -> bool:
        return shape >= 0 and op_kernel(line.names[name], line.detail.shapes[shape]) is not None

    for _ in range(UP):
        open_ = np.flatnonzero((op_of_work < 0) & (at >= 0))
        if not len(open_):
            break
        shape = line.detail.shape.at(at[open_])
        pairs = zip(line.name[at[open_]].tolist(), shape.tolist(), strict=True)
        has_price = np.array([has_formula(*pair) for pair in pairs], np.bool_)
        op_of_work[open_[has_price]], code[open_[has_price]] = at[open_[has_price]], shape[has_price]
        at = np.where(at >= 0, above[np.maximum(at, 0)], -1)
    return op_of_work, code


def _host_ops(line: Timeline, rows: Rows) -> Rows:
    """Ops that the host itself computes and that have a formula: the innermost, so that no time counts twice."""
    shape = line.detail.shape.at(rows)
    pairs = np.stack([line.name[rows].astype(np.int64), shape.astype(np.int64)], axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    has_formula = np.array(
        [code >= 0 and op_kernel(line.names[name], line.detail.shapes[code]) is not None
         for name, code in distinct.tolist()],
        np.bool_,
    )  # fmt: skip
    formula_rows = rows[has_formula[inverse.ravel()]]
    above, at = parents(line), formula_rows
    outer = np.zeros(len(line), np.bool_)
    while len(at):
        at = np.unique(above[at])
        at = at[at >= 0]
        at = at[~outer[at]]
        outer[at] = True
    return formula_rows[~outer[formula_rows]]


def _rate(line: Timeline, chip: Chip | None, work: Rows, op: Codes, code: int, duration: Longs) -> OpRate:
    shape = line.detail.shapes[code]
    name = line.names[int(line.name[op[0]])]
    wanted = op_kernel(name, shape)
    assert wanted is not None
    calls = np.unique(op)
    total = max(1, int(duration.sum()))
    kernel = work[int(duration.argmax())]
    dtype = wanted.dtype
    if dtype == "fp32" and TF32.search(line.names[int(line.name[kernel])]):
        dtype = "tf32"
    bound, roof = _roof(wanted, dtype, chip)
    longest = op[np.argsort(-duration, kind="stable")[:LONGEST]]
    return OpRate(
        op=name,
        operands=shape.words(),
        dtype=dtype,
        class_=line.classes[int(line.class_[kernel])],
        calls=len(calls),
        total_ns=total,
        flops=wanted.flops,
        size_bytes=wanted.bytes,
        bound=bound,
        efficiency=None if roof is None else roof * DECIMAL["G"] * len(calls) / total,
        rows=tuple(dict.fromkeys(longest.tolist())),
        chip=chip.id if chip else None,
    )


def _roof(kernel: Kernel, dtype: str, chip: Chip | None) -> tuple[str | None, float | None]:
    """What bounds one call on this chip, and the seconds it takes at least."""
    if chip is None or chip.hbm.bandwidth is None:
        return None, None
    peak = chip.peak.get(dtype)
    roof = kernel.roof(peak.value if peak is not None else None, chip.hbm.bandwidth.value)
    return (roof[1], roof[0]) if roof is not None else (None, None)


_WORDS = re.compile(r"[A-Za-z_]\w{3,}")
_UNNAMED = re.compile(r"(?:<unnamed>|\(anonymous namespace\))::")
_RETURNS = re.compile(r"^(?:void|bool|int|float|double) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernel:
    """A kernel of the timeline with its counters."""

    counters: KernelCounters
    names: tuple[str, ...]
    """Names in the timeline that the counters' name means."""
    class_: str
    spans: int
    total_ns: int
    rows: tuple[int, ...]
    """The longest, as rows of the timeline."""

    JSON = "*counters class spans total_us span_ids=rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCounters:
    """Counters with a place in the timeline, and those without one."""

    kernels: tuple[MeasuredKernel, ...] = ()
    absent: tuple[KernelCounters, ...] = ()

    JSON = "kernel_counters=kernels[:200] counters_not_in_trace=absent_names"

    @property
    def absent_names(self) -> tuple[str, ...]:
        """Names of kernels with counters that the timeline does not have."""
        return tuple(kernel.name for kernel in self.absent[:200])


def join_counters(line: Timeline, counted: Mask, counters: Sequence[KernelCounters]) -> JoinedCounters:
    """Kernels of the timeline by name: whole, without parameters, or the function's own name, the first that fits.

    Several kernels of one function differ in what they are instantiated with; tools spell that differently, so each
    goes to the counters whose name has most words in common with its own.
    """
    rows = np.flatnonzero(counted & line.of_kind(KERNEL))
    codes = np.unique(line.name[rows]).tolist()
    codes_of_counter: dict[int, list[int]] = {}
    for level in LEVELS:
        open_ = [index for index in range(len(counters)) if index not in codes_of_counter]
        free = _by(level, line, set(codes).difference(*codes_of_counter.values()))
        codes_of_name: dict[str, list[int]] = {}
        for index in open_:
            codes_of_name.setdefault(level(counters[index].name), []).append(index)
        for name, own in codes_of_name.items():
            for code in free.get(name, ()):
                codes_of_counter.setdefault(
                    max(own, key=lambda index: name_similarity(counters[index].name, line.names[code])), []
                ).append(code)
    kernels = [_measured_kernel(line, rows, codes, counters[index]) for index, codes in codes_of_counter.items()]
    return JoinedCounters(
        kernels=tuple(sorted(kernels, key=lambda one: -one.total_ns)),
        absent=tuple(counter for index, counter in enumerate(counters) if index not in codes_of_counter),
    )


def name_similarity(a: str, b: str) -> float:
    """Share of the words of two names that are in both.

    >>> (name_similarity("each<Gelu, Half>(int)", "void at::each<at::Gelu>"),
    ...  name_similarity("each<Gelu>", "each<Sigmoid>"),)
    (0.5, 0.3333333333333333)
    """
    left_words, right = set(_WORDS.findall(a)), set(_WORDS.findall(b))
    return len(left_words & right) / max(1, len(left_words | right))


def _by(level: Callable[[str], str], line: Timeline, codes: Iterable[int]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for code in sorted(codes):
        places.setdefault(level(line.names[code]), []).append(code)
    return places


def _measured_kernel(line: Timeline, rows: np.ndarray, codes: list[int], one: KernelCounters) -> MeasuredKernel:
    kernel_rows = rows[np.isin(line.name[rows], codes)]
    duration = line.durations_ns(kernel_rows)
    longest = kernel_rows[np.argsort(-duration, kind="stable")[:3]]
    return MeasuredKernel(
        counters=one,
        names=tuple(line.names[code] for code in codes),
        class_=line.classes[int(line.class_[longest[0]])],
        spans=len(kernel_rows),
        total_ns=int(duration.sum()),
        rows=tuple(longest.tolist()),
    )


def unabridged_name(name: str) -> str:
    """The name without what it returns and without namespaces that have no name.

    >>> (unabridged_name("void at::<unnamed>::softmax<float>(int)"),
    ...  unabridged_name("void at::(anonymous namespace)::softmax<float>(int)"),)
    ('at::softmax<float>(int)', 'at::softmax<float>(int)')
    """
    return _UNNAMED.sub("", _RETURNS.sub("", name.split(" [", 1)[0].strip()))


def without_parameters(name: str) -> str:
    """The name up to its parameters; parentheses inside template arguments are not those.

    >>> without_parameters("void at::native::copy<(int)4, f()>(int, char*)")
    'at::native::copy<(int)4, f()>'
    """
    name, depth = unabridged_name(name), 0
    for place, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0 and place:
            return name[:place]
    return name


def function(name: str) -> str:
    """The function's own name: no namespaces, no template arguments, no parameters.

    >>> function("void at::native::copy<(int)4, a::b>(int, char*)")
    'copy'
    """
    return without_parameters(name).split("<", 1)[0].rpartition("::")[2]


LEVELS: tuple[Callable[[str], str], ...] = (unabridged_name, without_parameters, function)
