"""Turn measured collectives into questions with seconds, and into predictions by numbers that never saw their system.

all_reduce, all_gather, reduce_scatter, alltoall    size_bytes is the whole tensor, as nccl-tests counts it
moe_dispatch, moe_combine, both with _ll            tokens, hidden size and experts stand in the notes
measured                                            latency_us, else size / algbw, else size * factor / busbw

A bundled row is predicted without its system. Two exceptions are told apart (`cross_validated` is false): a host that
joins PCIe slots can only be known from rows of that very host, and rows of your own take the shipped numbers. Systems
that library times do not describe (meshes, tori, libraries that go level by level) take the formulas of links.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.truth.rows import TRUTH, WORDS, Row, RowCells, Skipped, Unusable, read_or_skip, read_table
from ridgeline.calibrate.validation import Validation, ValidationCase, is_large, quantile_span
from ridgeline.comm.libraries import BenchmarkTime, LibraryChoice, SweepPoint, chosen_option
from ridgeline.core.arrays import Array
from ridgeline.core.errors import near
from ridgeline.core.files import write_text
from ridgeline.core.units import DECIMAL
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.cost.library_times import (
    BY_FAMILY,
    PRIORS,
    SHIPPED_LIBRARY_TIMES,
    CollectiveQuestion,
    ExpertExchange,
    LibraryParameters,
    Software,
    bare_link_seconds,
    counted_bytes,
    describes,
    harness_floor,
    library_seconds,
    prior_values,
    question_columns,
    shipped_parameters,
)
from ridgeline.cost.library_times import QuestionKind as Kind
from ridgeline.cost.pricing import Machines
from ridgeline.hardware.load import CHIPS, SYSTEMS, system
from ridgeline.hardware.system import System

_TOKENS = re.compile(r"tokens/rank=(\d{1,7})|\b(\d{1,7})(K?) tok", re.IGNORECASE)
_HIDDEN = re.compile(r"hidden[ =](\d{2,6})|\bh(\d{4,6})\b")
_TOP = re.compile(r"\btop-?(\d{1,3})\b(?! groups)")
_GROUPS = re.compile(r"\btop-?(\d{1,3}) groups")
_CORES = re.compile(r"\b(?:sms|#SMs)=(\d{1,3})\b")
HIDDEN, TOP_K, TOKENS = 7168, 8, 4096  # DeepSeek-V3, which DeepEP's tests are about
CORES = 20.0  # that DeepEP's normal kernels take unless told
SCALED = 1 + 4 / 128  # bytes of an fp8 element: one fp32 scale for 128 of them


def experts_of(cells: RowCells, kind: str, software: Software) -> ExpertExchange:
    """What a row moved; what its text leaves out is assumed as in DeepEP's tests, and noted."""
    text = cells.text("notes")
    hidden = _number(cells, _HIDDEN, text, "hidden", HIDDEN)
    top_k = _number(cells, _TOP, text, "experts of a token", TOP_K)
    groups, cores = _GROUPS.search(text), _CORES.search(text)
    token_bytes = hidden * (2.0 if kind == "combine" else SCALED)
    return ExpertExchange(
        tokens=_tokens(cells, text, token_bytes * top_k, software),
        token_bytes=token_bytes,
        top_k=top_k,
        nodes=float(groups.group(1)) if groups else 0.0,
        cores=max(1.0, float(cores.group(1))) if cores else CORES,
    )


def _number(cells: RowCells, pattern: re.Pattern[str], text: str, what: str, default: int) -> float:
    match = pattern.search(text)
    if match is None:
        cells.note(f"{what} = {default}: not stated")
        return float(default)
    value = float(next(part for part in match.groups() if part))
    if value <= 0:
        raise Unusable("notes", f"got {what} of 0")
    return value


def _tokens(cells: RowCells, text: str, copies_bytes: float, software: Software) -> float:
    """Tokens of a rank: stated, or from rate times time where the rate counts every copy, or as usual."""
    match = _TOKENS.search(text)
    if match is not None:
        plain, short, kilo = match.groups()
        tokens = float(plain or short) * (1024 if kilo else 1)
        if tokens > 0:
            return tokens
    rate, latency = cells.number("algbw_GBps"), cells.number("latency_us")
    if software == "deepep-ll" and rate is not None and latency is not None:
        cells.note("tokens from rate times time")
        return rate * DECIMAL["G"] * latency * DECIMAL["u"] / copies_bytes
    cells.note(f"tokens = {TOKENS}: not stated")
    return float(TOKENS)


GIGA, MICRO = DECIMAL["G"], DECIMAL["u"]
COLLECTIVES: Mapping[str, Kind] = WORDS["collectives"]
EXPERT_KINDS = ("dispatch", "combine")
LONGEST = 1e4  # seconds; no collective is beyond
LARGEST = DECIMAL["P"]  # bytes
WARMING = 2.0  # times as long as a larger payload of the same run: warming up
# what a row's text says against its chip: six and seven of eight chips at 365 GB/s are not a bridge of four
READ_AS: Mapping[tuple[str, str], str] = MappingProxyType({("h200-nvl", "H200 x8 NVLink4"): "h200-sxm"})
# rates that a site's chips have between domains where the catalog's differ: one 400 Gbit/s port per chip
FABRICS: Mapping[tuple[str, str], str] = MappingProxyType({("gb200-nvl72", "(CoreWeave)"): "400 Gbit/s"})
# ranks that one chip holds: each die of an Ascend 910C is a rank
DIES: Mapping[str, int] = MappingProxyType({"ascend-910c": 2})
# who measured with what: text of a source -> harness whose own launches short collectives hide behind
HARNESS_OF: tuple[tuple[str, str], ...] = (("AI-benchmarking-guide", "one-process"), ("microsoft/vidur", "profiler"))
_VERSION = re.compile(r"NCCL (\d{1,2})\.(\d{1,3})")
OLD = (2, 23)  # from here on NCCL's protocols start sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """A collective that somebody timed, as the formulas take it."""

    row: Row
    question: CollectiveQuestion
    seconds: float
    notes: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.question.kind

    @property
    def size(self) -> float:
        return self.question.size

    @property
    def system(self) -> System:
        return self.question.system

    @property
    def series(self) -> tuple[str, ...]:
        """What rows of one run over sizes share."""
        identity = [self.row[name] for name in ("source", "system", "ranks", "nodes", "collective", "x_chip")]
        question = self.question
        return (*identity, question.software, str(question.in_switch), str(question.experts is not None))


def measured_of(row: Row) -> MeasuredCollective | Skipped:
    """What a row says, or why nothing can be predicted for it; never raises for what a row holds."""
    return read_or_skip(row, _read)


def _read(cells: RowCells) -> MeasuredCollective:
    row = cells.row
    cells.refuse_elsewhere("collectives_elsewhere")
    kind, software = _kind(cells)
    ranks, nodes = cells.need("ranks"), cells.assume("nodes", 1)
    if ranks < 2 or ranks % nodes:
        raise Unusable("ranks, nodes", f"got {ranks} on {nodes}, expected two or more, equally on every node")
    if nodes > 1 and re.search(r"slow fabric", row["notes"]):
        raise Unusable("notes", "measured over another network than the chip's usual one")
    size = _size(cells) if kind not in EXPERT_KINDS else 1.0
    version = _VERSION.search(row["notes"])
    is_old = (int(version[1]), int(version[2])) < OLD if version else "microsoft/vidur" in row["source"]
    built_system, dies = _system(cells, ranks, nodes)
    if ranks > built_system.chips * dies:
        raise Unusable(
            "ranks", f"got {ranks}, expected at most one per chip of {built_system.name} ({built_system.chips})"
        )
    question = CollectiveQuestion(
        kind=kind, software=software, size=size, ranks=ranks, system=built_system, share=1 / dies,
        # ranks fill a node; fewer than its chips lie apart only when every node has one
        stride=built_system.node if ranks == nodes > 1 else 1,
        in_switch="NVLS_ENABLE=0" not in row["notes"], old=is_old,
        network="efa" if re.search(r"\bEFA", row["system"]) else "",
        harness=next((harness for text, harness in HARNESS_OF if text in row["source"]), ""),
    )  # fmt: skip
    if kind in EXPERT_KINDS:
        question = _with_experts(cells, question)
    return MeasuredCollective(row=row, question=question, seconds=_seconds(cells, question), notes=tuple(cells.notes))


def _kind(cells: RowCells) -> tuple[Kind, Software]:
    text = cells.text("collective").lower()
    if re.fullmatch(r"all_reduce ?\(custom trt-llm\)", text):
        return "all-reduce", "trtllm"
    if re.search(r"custom", text):
        raise Unusable("collective", "a fused kernel of an engine that no formula here describes")
    quick = text.startswith("moe_") and text.endswith("_ll")
    kind = COLLECTIVES.get(text.removesuffix("_ll") if quick else text)
    if kind is None:
        raise Unusable(
            "collective", f"got {text[:40]!r}, expected one of {', '.join(COLLECTIVES)}" if text else "blank"
        )
    if kind in EXPERT_KINDS:
        version: Software = "deepep-v2" if re.search(r"DeepEP V2", cells.text("notes")) else "deepep"
        return kind, "deepep-ll" if quick else version
    return kind, "mscclpp" if "MSCCL++" in cells.text("notes") else "nccl"


def _size(cells: RowCells) -> float:
    size = cells.number("size_bytes")
    if size is None:
        raise Unusable("size_bytes", "blank, and it cannot be guessed")
    if size > LARGEST:
        raise Unusable("size_bytes", f"got {size:.3g}, expected at most {LARGEST:.0e}")
    return size


def _with_experts(cells: RowCells, question: CollectiveQuestion) -> CollectiveQuestion:
    experts = experts_of(cells, question.kind, question.software)
    size = experts.tokens * experts.top_k * experts.token_bytes
    if not 0 < size < LARGEST:
        raise Unusable("notes", f"{size:.3g} bytes of a rank are not believable")
    return replace(question, experts=experts, size=size)


def _seconds(cells: RowCells, question: CollectiveQuestion) -> float:
    """Seconds as measured.

    factor    all-reduce 2 (R-1)/R,  the others (R-1)/R; a rate of dispatch or combine counts bytes as DeepEP does
    """
    latency, plain, bus = (cells.number(column) for column in ("latency_us", "algbw_GBps", "busbw_GBps"))
    ranks, size = question.ranks, question.size
    if question.experts is not None:
        size, bus = float(counted_bytes(question_columns([question]))[0]), None
    factor = (2 if question.kind == "all-reduce" else 1) * (ranks - 1) / ranks
    if latency is not None:
        seconds = latency * MICRO
    elif plain is not None:
        seconds = size / (plain * GIGA)
    elif bus is not None:
        seconds = size * factor / (bus * GIGA)
    else:
        raise Unusable("latency_us, algbw_GBps, busbw_GBps", "all blank")
    if not 0 < seconds < LONGEST:
        raise Unusable("latency_us, algbw_GBps, busbw_GBps", f"{seconds:.3g} s is not believable")
    return seconds


def _system(cells: RowCells, ranks: int, nodes: int) -> tuple[System, int]:
    """The system a row ran on, and ranks to a chip."""
    chip = cells.text("x_chip")
    for (id, text), system_name in READ_AS.items():
        if chip == id and cells.text("system") == text:
            cells.note(f"x_chip = {system_name}: {text!r} is not a system of {chip}")
            chip = system_name
    if chip not in CHIPS:
        close = near(chip, list(CHIPS)) if chip else ()
        raise Unusable("x_chip", f"got {chip[:40]!r}, expected {' or '.join(close) or 'a chip of the catalog'}")
    rate = next((rate for (id, text), rate in FABRICS.items() if chip == id and text in cells.text("system")), "")
    if rate and nodes > 1:
        cells.note(f"{rate} a chip between domains, as at this site")
    dies = DIES.get(chip, 1)
    chips = max(-(-ranks // dies), nodes * SYSTEMS[CHIPS[chip].system].node)
    if dies > 1:
        cells.note(f"a rank is one of {dies} dies of a chip")
    return _built(chip, chips, rate if nodes > 1 else ""), dies


@cache
def _built(chip: str, chips: int, rate: str) -> System:
    """The system of that many chips, its innermost domains full where they can be; `rate` is that of the outer tier."""
    tiers = SYSTEMS[CHIPS[chip].system].tier
    table: dict[str, object] = {"base": f"{chips}x{chip}"}
    domain = tiers[0].chips
    if domain is not None and chips > domain and chips % domain == 0:
        table["domain"] = domain
    if rate and len(tiers) > 1:
        table["tier"] = {tiers[1].name: {"bandwidth": rate}}
    built_system = system(table)
    Machines.of([built_system])  # a rate that nobody published is named here
    return built_system


@cache
def bundled_collectives() -> tuple[MeasuredCollective, ...]:
    """The bundled rows that a question can be made of."""
    read = [measured_of(row) for row in read_table(TRUTH / "collectives.csv", ("collectives",))[1]]
    return tuple(item for item in read if isinstance(item, MeasuredCollective))


SWEEP = tuple(4**power for power in range(5, 17))  # bytes: 1 KiB to 4 GiB
BENCHMARKS: Mapping[str, Kind] = MappingProxyType(
    {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}
)
SCATTER = 0.15  # of a row, as a logarithm
LOOSE = 1.0  # of what all families share
DIGITS = 5


def fit_collectives(progress: ProgressCallback = ignore_progress) -> LibraryParameters:
    """The numbers fitted to all bundled rows, and those fitted without each system.

    minimise  sum over rows of rho((log predicted - log measured) / 0.15)  +  sum of ((log x - log prior) / spread)^2

    rho is soft-l1, so that single rows that tell of something else do not bend the rest. A family's number is drawn to
    that of all families. A measurement that two systems report alike is left out with either.
    """
    rows = [item for item in bundled_collectives() if describes(item.system)]
    systems = sorted({item.row["system"] for item in rows})
    progress(0, len(systems) + 1, "all systems")
    full_fit = _fit_values(rows, prior_values())
    folds = {}
    errors = in_sample(LibraryParameters(values=full_fit, folds={}))
    best = ", ".join(f"{error:.1%} off {what}" for what, error in errors.items())
    for index, left_out in enumerate(systems):
        progress(index + 1, len(systems) + 1, f"without {left_out}", best)
        folds[left_out] = _fit_values(_without(rows, left_out), full_fit)
    return LibraryParameters(values=full_fit, folds=folds)


def write_collectives(found: LibraryParameters, path: Path = SHIPPED_LIBRARY_TIMES) -> None:
    """Write the numbers with their units and meaning."""
    about = {
        name: {"prior": prior.value, "spread": prior.spread, "unit": prior.unit, "what": prior.what}
        for name, prior in {**BY_FAMILY, **PRIORS}.items()
    }
    source = "truth/collectives.csv, by `ridgeline fit --collectives`"
    data = {"source": source, "mape": in_sample(found), "about": about, "all": found.values, "without": found.folds}
    write_text(path, json.dumps(data, indent=1) + "\n")


def in_sample(found: LibraryParameters) -> dict[str, float]:
    """Mean |residual| of the rows that were fitted: what is left where a system is known."""
    rows = [item for item in bundled_collectives() if describes(item.system)]
    predicted_s = library_seconds(question_columns([item.question for item in rows]), found.values)
    off = np.abs(predicted_s / np.array([item.seconds for item in rows]) - 1)
    large = np.array([is_large(item.size) for item in rows])
    return {"known, above 1 MB": float(off[large].mean()), "known, to 1 MB": float(off[~large].mean())}


def _without(rows: Sequence[MeasuredCollective], system: str) -> list[MeasuredCollective]:
    figures = {_figure(item) for item in rows if item.row["system"] == system}
    return [item for item in rows if item.row["system"] != system and _figure(item) not in figures]


def _figure(item: MeasuredCollective) -> tuple[object, ...]:
    question = item.question
    return (question.kind, question.software, question.ranks, question.size, item.seconds)


def _fit_values(rows: Sequence[MeasuredCollective], start: Mapping[str, float]) -> dict[str, float]:
    from scipy.optimize import least_squares

    columns = question_columns([item.question for item in rows])
    log_seconds = np.log([item.seconds for item in rows])
    names = tuple(start)
    prior_distance = _prior_distance_of(names)

    def residuals(x: Array) -> Array:
        predicted_s = library_seconds(columns, dict(zip(names, np.exp(x).tolist(), strict=True)))
        return np.concatenate([np.log(predicted_s) / SCATTER - log_seconds / SCATTER, prior_distance(x)])

    begin = np.log([start[name] for name in names])
    solution = least_squares(residuals, begin, loss="soft_l1", f_scale=1.0, max_nfev=60)
    return {name: float(f"{value:.{DIGITS}g}") for name, value in zip(names, np.exp(solution.x), strict=True)}


def _prior_distance_of(names: Sequence[str]) -> Callable[[Array], Array]:
    """How far each number is from what is believed of it, in spreads, as a function of logarithms."""
    at = {name: index for index, name in enumerate(names)}
    shared, single = ([at[name] for name in priors] for priors in (BY_FAMILY, PRIORS))
    shared_means, single_means = (np.log([item.value for item in priors.values()]) for priors in (BY_FAMILY, PRIORS))
    single_spreads = np.array([prior.spread for prior in PRIORS.values()])
    families = [(name, name.partition(".")[0]) for name in names if name.partition(".")[0] in BY_FAMILY and "." in name]
    own, common = [at[name] for name, _ in families], [at[shared_name] for _, shared_name in families]
    own_spreads = np.array([BY_FAMILY[shared_name].spread for _, shared_name in families])

    def distance(x: Array) -> Array:
        apart = (x[own] - x[common]) / own_spreads
        return np.concatenate([(x[shared] - shared_means) / LOOSE, apart, (x[single] - single_means) / single_spreads])

    return distance


FEW = 20  # residuals that an interval needs at least


def validate_collectives(rows: Iterable[Row]) -> Validation:
    """The cases of a table of collectives; a bundled row is predicted by numbers whose fit never saw its system."""
    read = [measured_of(row) for row in rows]
    cases, refusals = collective_cases([item for item in read if isinstance(item, MeasuredCollective)])
    skipped_rows = tuple(item for item in read if isinstance(item, Skipped))
    return Validation(kind="collectives", cases=cases, skipped=(*skipped_rows, *refusals))


def collective_cases(
    read: Sequence[MeasuredCollective],
) -> tuple[tuple[ValidationCase, ...], tuple[Skipped, ...]]:
    """Every collective with its prediction, and those that tell nothing about a collective, each with why."""
    refusals = _refusals(read)
    usable = [item for item in read if id(item) not in refusals]
    predicted_s, left_out = predictions(usable)
    cases = tuple(
        ValidationCase.of(
            item.row, item.seconds, seconds, _bundled_spread().interval_of(item), part=item.kind,
            chip=item.system.chip.id, engine=item.question.software, cross_validated=is_left_out,
            assumptions=item.notes, size=item.size,
        )
        for item, seconds, is_left_out in zip(usable, predicted_s.tolist(), left_out, strict=True)
    )  # fmt: skip
    return cases, tuple(refusals.values())


def _refusals(read: Sequence[MeasuredCollective]) -> dict[int, Skipped]:
    return {**_warming(read), **_hidden(read)}


def predictions(read: Sequence[MeasuredCollective]) -> tuple[Array, list[bool]]:
    """Seconds of each collective, and whether its system took no part in the fit of the numbers used."""
    fit = shipped_parameters()
    bundled_row_ids = bundled_ids()
    seconds, left_out = np.zeros(len(read)), [False] * len(read)
    by_fold: dict[str | None, list[int]] = defaultdict(list)
    for index, item in enumerate(read):
        if not describes(item.system):
            by_fold[None].append(index)
            continue
        system = item.row["system"]
        # whether a number that only rows of this system can give decides its time
        only_here = item.question.ranks > 2 and f"many.{item.system.template}" in fit.values
        is_left_out = item.row.id in bundled_row_ids and system in fit.folds and not only_here
        left_out[index] = is_left_out
        by_fold[system if is_left_out else ""].append(index)
    for fold, rows in by_fold.items():
        some = [read[index] for index in rows]
        if fold is None:
            seconds[rows] = bare_link_seconds([item.question for item in some])
        else:
            values = fit.folds[fold] if fold else fit.values
            seconds[rows] = library_seconds(question_columns([item.question for item in some]), values)
    return seconds, left_out


def expected_seconds(question: CollectiveQuestion) -> tuple[float, float, float]:
    """What a benchmark of a collective would measure, and where nine of ten would lie.

    >>> from ridgeline.hardware.load import system
    >>> question = CollectiveQuestion(kind="all-reduce", size=2**30, ranks=8, system=system("8xh100-sxm"))
    >>> [round(seconds * 1e3, 1) for seconds in expected_seconds(question)]
    [4.1, 3.5, 5.1]
    """
    blank = Row(id="", table="", cells=MappingProxyType({}))
    item = MeasuredCollective(row=blank, question=question, seconds=1.0, notes=())
    seconds = float(predictions([item])[0][0])
    low, high = _bundled_spread().interval_of(item)
    return seconds, seconds * low, seconds * high


def with_benchmark(choice: LibraryChoice) -> LibraryChoice:
    """A library's choice beside what a benchmark would measure, at its size and over a sweep of sizes."""
    benchmark = _benchmark(choice, choice.size_bytes)
    return replace(choice, measured=benchmark, sweep=tuple(_sweep_point(choice, size) for size in SWEEP))


def _benchmark(choice: LibraryChoice, size: float) -> BenchmarkTime:
    kind = BENCHMARKS.get(choice.collective, "all-gather")  # a broadcast moves what an all-gather does: all to all
    question = CollectiveQuestion(kind=kind, size=size, ranks=choice.system.chips, system=choice.system)
    seconds, low, high = expected_seconds(question)
    algbw = size / seconds
    return BenchmarkTime(seconds=seconds, low=low, high=high, algbw=algbw, busbw=algbw * choice.bus_factor)


def _sweep_point(choice: LibraryChoice, size: int) -> SweepPoint:
    option, _ = chosen_option(choice.collective, choice.system, float(size), choice.library)
    benchmark = _benchmark(choice, float(size))
    return SweepPoint(
        size_bytes=size,
        algorithm=option.algorithm,
        protocol=option.protocol,
        channels=option.channels,
        seconds=option.seconds,
        busbw=float(size) / option.seconds * choice.bus_factor,
        measured_seconds=benchmark.seconds,
        measured_busbw=benchmark.busbw,
    )


def _warming(read: Iterable[MeasuredCollective]) -> dict[int, Skipped]:
    """Rows that took longer than a larger payload of the same run: the run was still warming up."""
    series: dict[tuple[str, ...], list[MeasuredCollective]] = defaultdict(list)
    for item in read:
        series[item.series].append(item)
    reasons = {}
    for items in series.values():
        items.sort(key=lambda item: -item.size)
        best, at = float("inf"), 0.0
        for item in items:
            if item.seconds > WARMING * best and item.size < at:
                times = f"{item.seconds * 1e6:.0f} us, and {best * 1e6:.0f} us for {at / item.size:.0f} times the bytes"
                reasons[id(item)] = Skipped(id=item.row.id, reason=f"latency_us: {times}: the run was warming up")
            elif item.seconds < best:
                best, at = item.seconds, item.size
    return reasons


def _hidden(read: Sequence[MeasuredCollective]) -> dict[int, Skipped]:
    """Rows of a host-driven profiler whose collective is shorter than its own launches."""
    profiler_rows = [item for item in read if item.question.harness == "profiler" and describes(item.system)]
    if not profiler_rows:
        return {}
    values = shipped_parameters().values
    columns = question_columns([item.question for item in profiler_rows])
    floor = harness_floor(columns, values)
    bare = library_seconds(question_columns([replace(item.question, harness="") for item in profiler_rows]), values)
    why = "source: a host-driven profiler, whose launches take longer ({:.0f} us) than this collective ({:.0f} us)"
    return {
        id(item): Skipped(id=item.row.id, reason=why.format(least * 1e6, device * 1e6))
        for item, least, device in zip(profiler_rows, floor, bare, strict=True)
        if device < least
    }


@cache
def bundled_ids() -> frozenset[str]:
    """Ids of the rows that the fit has seen."""
    return frozenset(item.row.id for item in bundled_collectives())


class _CollectiveIntervals:
    """log(measured / predicted) of the bundled collectives, each without its system."""

    def __init__(self) -> None:
        read = bundled_collectives()
        refusals = _refusals(read)
        self.items = [item for item in read if id(item) not in refusals]
        predicted_s, _ = predictions(self.items)
        self.logs = np.log([item.seconds for item in self.items]) - np.log(predicted_s)
        self.systems = np.array([item.row["system"] for item in self.items])
        self.classes = np.array([_interval_class(item) for item in self.items])
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def interval_of(self, item: MeasuredCollective) -> tuple[float, float]:
        """Where nine of ten measurements lie around a prediction of 1 s: bundled ones of other systems."""
        key = (_interval_class(item), item.row["system"])
        if key not in self._known:
            other_logs = self.logs[(self.classes == key[0]) & (self.systems != key[1])]
            other_logs = other_logs if len(other_logs) >= FEW else self.logs[self.systems != key[1]]
            self._known[key] = quantile_span(other_logs)
        return self._known[key]


def _interval_class(item: MeasuredCollective) -> str:
    """Rows whose residuals are alike: large or small, with or without experts, measured by what."""
    size = "large" if is_large(item.size) else "small"
    return "experts" if item.question.experts is not None else f"{size} {item.question.harness}".strip()


@cache
def _bundled_spread() -> _CollectiveIntervals:
    return _CollectiveIntervals()
