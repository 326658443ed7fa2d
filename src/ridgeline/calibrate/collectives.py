"""Turn measured collectives into questions with seconds, beside what the formulas of links and libraries give.

all_reduce, all_gather, reduce_scatter, alltoall    size_bytes is the whole tensor, as nccl-tests counts it
moe_dispatch, moe_combine, both with _ll            tokens, hidden size and experts stand in the notes
measured                                            latency_us, else size / algbw, else size * factor / busbw

Turn the text of a measured MoE dispatch or combine into what it moved: tokens, bytes of a token, experts, limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells, Skipped, Unusable
from ridgeline.calibrate.truth.rows import COLLECTIVES as TABLE
from ridgeline.calibrate.truth.rows import TRUTH, Row, read_table
from ridgeline.core.errors import RidgelineError, near
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost import machines_of
from ridgeline.cost.library_times import CollectiveQuestion, ExpertExchange, Software, counted_bytes, question_columns
from ridgeline.cost.library_times import QuestionKind as Kind
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
COLLECTIVES: Mapping[str, Kind] = MappingProxyType(
    {
        "all_reduce": "all-reduce",
        "all_gather": "all-gather",
        "reduce_scatter": "reduce-scatter",
        "alltoall": "all-to-all",
        "moe_dispatch": "dispatch",
        "moe_combine": "combine",
    }
)
EXPERT_KINDS = ("dispatch", "combine")
LONGEST = 1e4  # seconds; no collective is beyond
LARGEST = DECIMAL["P"]  # bytes
SIZES = (
    (64 * BINARY["Ki"], "to 64 KiB"),
    (4 * BINARY["Mi"], "to 4 MiB"),
    (256 * BINARY["Mi"], "to 256 MiB"),
    (float("inf"), "larger"),
)
WARMING = 2.0  # times as long as a larger payload of the same run: warming up
# what a row's text says against its chip: six and seven of eight chips at 365 GB/s are not a bridge of four
READ_AS: Mapping[tuple[str, str], str] = MappingProxyType({("h200-nvl", "H200 x8 NVLink4"): "h200-sxm"})
# rates that a site's chips have between domains where the catalog's differ: one 400 Gbit/s port per chip
FABRICS: Mapping[tuple[str, str], str] = MappingProxyType({("gb200-nvl72", "(CoreWeave)"): "400 Gbit/s"})
# ranks that one chip holds: each die of an Ascend 910C is a rank
DIES: Mapping[str, int] = MappingProxyType({"ascend-910c": 2})
# text of a row -> why no formula here describes it
ELSEWHERE: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("notes", re.compile(r"\bSPEC\b"), "a data sheet's figure, not a measurement: the catalog holds it as a rate"),
    ("notes", re.compile(r"rule-of-thumb"), "an operator's rule of thumb, not a measurement"),
    ("collective", re.compile(r"flat"), "ranks are devices, two to a chip, and whose payload it is is not said"),
    ("collective", re.compile(r"memcpy|^p2p"), "a copy between two places, not a collective"),
)
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
    def stride(self) -> int:
        return self.question.stride

    @property
    def series(self) -> tuple[str, ...]:
        """What rows of one run over sizes share."""
        identity = [self.row[name] for name in ("source", "system", "ranks", "nodes", "collective", "x_chip")]
        question = self.question
        return (*identity, question.software, str(question.in_switch), str(question.experts is not None))


def measured_of(row: Row) -> MeasuredCollective | Skipped:
    """What a row says, or why nothing can be predicted for it; never raises for what a row holds."""
    cells = RowCells(row=row)
    try:
        return _read(cells)
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except RidgelineError as wrong:
        return Skipped(id=row.id, reason=str(wrong).splitlines()[0])


def _read(cells: RowCells) -> MeasuredCollective:
    row = cells.row
    for column, pattern, why in ELSEWHERE:
        if pattern.search(row[column]):
            raise Unusable(column, why)
    kind, software = _kind(cells)
    ranks, nodes = cells.need("ranks"), cells.assume("nodes", 1)
    if ranks < 2 or ranks % nodes:
        raise Unusable("ranks, nodes", f"got {ranks} on {nodes}, expected two or more, equally on every node")
    if nodes > 1 and re.search(r"slow fabric", row["notes"]):
        raise Unusable("notes", "measured over another network than the chip's usual one")
    size = _size(cells) if kind not in EXPERT_KINDS else 1.0
    built_system, dies = _system(cells, ranks, nodes)
    if ranks > built_system.chips * dies:
        raise Unusable(
            "ranks", f"got {ranks}, expected at most one per chip of {built_system.name} ({built_system.chips})"
        )
    question = CollectiveQuestion(
        kind=kind, software=software, size=size, ranks=ranks, system=built_system, share=1 / dies,
        # ranks fill a node; fewer than its chips lie apart only when every node has one
        stride=built_system.node if ranks == nodes > 1 else 1,
        in_switch="NVLS_ENABLE=0" not in row["notes"], old=_is_old(row),
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


def _is_old(row: Row) -> bool:
    match = _VERSION.search(row["notes"])
    if match is None:
        return "microsoft/vidur" in row["source"]
    return (int(match.group(1)), int(match.group(2))) < OLD


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
    machines_of([built_system])  # a rate that nobody published is named here
    return built_system


@cache
def bundled_collectives() -> tuple[MeasuredCollective, ...]:
    """The bundled rows that a question can be made of."""
    read = [measured_of(row) for row in read_table(TRUTH / TABLE, ("collectives",))[1]]
    return tuple(item for item in read if isinstance(item, MeasuredCollective))
