"""What bringing a model up on a device brought, as values: no torch is needed to read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from sys import float_info
from typing import Literal

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.hardware.chip import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is possible on a chip.

    flops_per_s    by key of a peak: fp32, tf32, bf16, fp8
    bytes_per_s    of its memory; None where nobody says
    cache_bytes    what the last cache holds: smaller tensors may be faster than memory
    source         data sheet, or the profile that measured them
    """

    name: str
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    cache_bytes: float = 0.0
    source: str = ""


def rates_of(chip: Chip) -> Rates:
    """The data sheet's."""
    return Rates(
        name=chip.id, flops_per_s={key: peak.value for key, peak in chip.peak.items()},
        bytes_per_s=chip.hbm.bandwidth.value if chip.hbm.bandwidth else None,
        cache_bytes=chip.cache.capacity.value if chip.cache.capacity else 0.0, source="data sheet",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureRow:
    """One op with the formats, shapes and strides of its tensors.

    module, phase   where it was called first
    calls           in the captured steps; model_calls: in as many layers as the model has
    """

    op: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    module: str
    phase: str
    calls: int
    model_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An op that the device runs otherwise than by a kernel of its own; `detail` says how."""

    op: str
    module: str
    phase: str
    calls: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All of it.

    unsupported    formats with what the device cannot do in them: hold, add, multiply
    graph_breaks   places where a compiler would leave its graph, with why; None where nobody looked
    """

    rows: tuple[SignatureRow, ...] = ()
    missing: tuple[Remark, ...] = ()
    fallback: tuple[Remark, ...] = ()
    decomposed: tuple[Remark, ...] = ()
    synchronising: tuple[Remark, ...] = ()
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    graph_breaks: tuple[str, ...] | None = None

    @property
    def phases(self) -> dict[str, int]:
        """Calls of the whole model by phase."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.phase] = counts.get(row.phase, 0) + row.model_calls
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpeed:
    """One signature of an op.

    seconds    of one call, median of rounds; spread: of the rounds, over the median
    roof_s     at best; share: roof over seconds; None where the chip's rates do not say
    bound      compute, memory, cache (memory's roof, which a cache may beat) or launch
    flag       slow, impossible, or nothing
    """

    op: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    module: str
    phase: str
    calls: int
    seconds: float
    spread: float
    flops: float
    bytes: float
    bound: str = ""
    roof_s: float | None = None
    share: float | None = None
    flag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Launch-bound ops in a row: from the module of the first to that of the last."""

    begin: str
    end: str
    phase: str
    ops: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A step's ops, the slowest first, and the chip they are held against.

    nothing_s    an op that does nothing, as the step calls it
    step_s       all calls, one after the other
    """

    device: str
    rates: Rates | None
    tokens: tuple[int, int]
    dtype: str
    nothing_s: float
    ops: tuple[OpSpeed, ...]
    stretches: tuple[Stretch, ...]

    @property
    def step_s(self) -> float:
        return sum(op.seconds * op.calls for op in self.ops)

    @property
    def flagged(self) -> tuple[OpSpeed, ...]:
        """Those that are slow or impossible, what costs most first."""
        return tuple(op for op in self.ops if op.flag)


def join_inventories(one: Inventory, other: Inventory) -> Inventory:
    """Both, as of one run: an op that both remark on is counted once, with all its calls."""
    return Inventory(
        rows=(*one.rows, *other.rows), missing=remarks((*one.missing, *other.missing)),
        fallback=remarks((*one.fallback, *other.fallback)), decomposed=remarks((*one.decomposed, *other.decomposed)),
        synchronising=remarks((*one.synchronising, *other.synchronising)),
        unsupported={**one.unsupported, **other.unsupported},
        graph_breaks=one.graph_breaks if other.graph_breaks is None else other.graph_breaks,
    )  # fmt: skip


def remarks(found: Iterable[Remark]) -> tuple[Remark, ...]:
    """One for each op: where it was first, and how often in all."""
    first: dict[str, Remark] = {}
    for remark in found:
        previous = first.get(remark.op)
        first[remark.op] = remark if previous is None else replace(previous, calls=previous.calls + remark.calls)
    return tuple(first.values())


CUT_BITS = 14  # below it is no 32-bit accumulator that cuts off, but one of fewer bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Matrix products of one format.

    factor_bits    significant bits of a factor that are multiplied: 24 in fp32, 11 in TF32, 8 in bf16
    bits           of a sum of 4,096 terms that are right: some 20 for a 32-bit accumulator, 8 for one of bf16
    sums           how the accumulator rounds: nearest, toward zero, away from zero
    lean           mean error of such sums, relative
    """

    factor_bits: int
    bits: float
    sums: str
    lean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rough:
    """A function in fp32: its largest error in units in the last place, and the mean of all (too large is positive)."""

    ulp: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """An arithmetic unit.

    cast         how fp32 becomes bf16: nearest with ties to even, away, toward zero
    denormals    by format: kept, flushed, read only, made only
    fma          whether addcmul adds its product unrounded; None where it cannot be asked
    fp8          by format: its largest number, and what lies beyond
    """

    products: dict[str, Products] = field(default_factory=dict)
    cast: str = ""
    denormals: dict[str, str] = field(default_factory=dict)
    fma: bool | None = None
    functions: dict[str, Rough] = field(default_factory=dict)
    fp8: dict[str, str] = field(default_factory=dict)

    @property
    def cuts_off(self) -> bool:
        """Whether accumulators of products round toward zero, as tensor cores' do."""
        return any(product.sums == "toward zero" and product.bits >= CUT_BITS for product in self.products.values())

    def notes(self, allowed: frozenset[str] = frozenset(), stored: Fingerprint | None = None) -> tuple[str, ...]:
        """What judgements took from it, or from the one of the chip's profile, and what is unlike IEEE, in words."""
        notes_, wide = [], (stored or self).cuts_off
        for name, product in self.products.items():
            if name == "fp32" and product.factor_bits < 24:
                kept_text = "TF32" if product.factor_bits == 11 else f"{product.factor_bits} bits"
                notes_.append(
                    f"products of fp32 keep {kept_text} of their factors"
                    + (": allowed, and judged so" if "tf32" in allowed else ": --allow tf32 accepts TF32")
                )
            if product.sums == "toward zero":
                wider = wide and product.bits >= CUT_BITS
                notes_.append(
                    f"sums of {name} products are rounded toward zero"
                    + (": contracts of products allow for it" if wider else "")
                )
            elif product.bits < CUT_BITS:
                notes_.append(f"sums of {name} products keep {product.bits:.0f} bits: no 32-bit accumulator")
        if self.cast and self.cast != "nearest, ties to even":
            notes_.append(f"fp32 becomes bf16 by rounding {self.cast}")
        if self.fp8.get("e4m3fn", "448").startswith("240"):
            notes_.append("fp8 e4m3 ends at 240, not 448")
        return tuple(notes_)

    def as_table(self) -> JsonObject:
        """The table that a profile stores; formats and functions without a finite figure are left out."""
        table: JsonObject = asdict(self)
        for part in ("products", "functions"):
            figures = table[part].items()
            table[part] = {
                name: entry
                for name, entry in figures
                if all(isfinite(value) for value in entry.values() if isinstance(value, float))
            }
        return table

    @classmethod
    def from_table(cls, table: JsonMapping) -> Fingerprint:
        """A fingerprint from a table that was checked; what it lacks is not known."""
        return cls(
            products={name: Products(**entry) for name, entry in table.get("products", {}).items()},
            cast=table.get("cast", ""),
            denormals=dict(table.get("denormals", {})),
            fma=table.get("fma"),
            functions={name: Rough(**entry) for name, entry in table.get("functions", {}).items()},
            fp8=dict(table.get("fp8", {})),
        )


Told = Literal["pass", "fail", "not run"]


class _Measured:
    """A measured figure and its limit; infinities and what is no number at all are the largest number in JSON."""

    __slots__ = ()
    measured: float
    limit: float
    JSON = "* measured=printed_measured limit=printed_limit"

    @property
    def printed_measured(self) -> float:
        return self.measured if isfinite(self.measured) else float_info.max

    @property
    def printed_limit(self) -> float:
        return self.limit if isfinite(self.limit) else float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFinding(_Measured):
    """An op that gave a wrong result or none at all.

    module, phase    where it was first wrong: in the model, or in the standing set (with what was hard about the input)
    statistic        what broke the contract, what it measured and its limit; `raised`, `died` or `hung` where there was
                     no result; the name of a rung, an invariance or `race` where the op alone was not seen to be wrong
    times            how many calls were wrong
    repro            a script beside its inputs that shows it; empty where none was saved
    """

    op: str
    module: str
    phase: str
    dtype: str
    statistic: str
    measured: float
    limit: float
    times: int = 1
    message: str = ""
    repro: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(_Measured):
    """A rung of the ladder or an invariance: what was measured, its limit, and why it failed or was not run.

    where    the first place beyond its limit: a layer, a parameter, a step
    op       the op that a bisection found, or that a finding already names
    """

    name: str
    format: str
    verdict: Told
    statistic: str = ""
    measured: float = 0.0
    limit: float = 0.0
    where: str = ""
    op: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """The same step again and again.

    same          whether every op gave the same bits every time
    reordered     ops whose bits differed from run to run within their contract: sums in another order
    races         ops whose results differed by more: these are findings
    """

    runs: int = 0
    same: bool = True
    reordered: tuple[str, ...] = ()
    races: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Calls of the standing set, ops that nothing could judge, and what of the architecture was left out."""

    probed: int
    unjudged: dict[str, int]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReport:
    """What the training step dispatched on the device.

    ops          each op with its number of calls
    signatures   op x format x shape x stride that were captured, and judged
    """

    ops: dict[str, int]
    signatures: int
    inventory: Inventory

    JSON = "ops signatures phases=inventory.phases *inventory"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedReport:
    """How fast the ops of a step are beside what the chip can do; no part of the verdict.

    chip       whose rates they are held against, null without
    source     data sheet or the profile
    tokens     sequences and their length in the timed step
    flagged    ops that are slow or impossible
    fallback   ops that the host computes for the device
    """

    speed: Speed
    fallback: tuple[str, ...]

    JSON = """
        chip=speed.rates.name source tokens=speed.tokens dtype=speed.dtype nothing_s=speed.nothing_s
        step_s=speed.step_s flagged fallback stretches=speed.stretches ops=speed.ops
    """

    @property
    def source(self) -> str:
        return self.speed.rates.source if self.speed.rates else ""

    @property
    def flagged(self) -> int:
        return len(self.speed.flagged)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintReport:
    """The arithmetic unit, and what judgements took from it.

    allowed     what --allow accepts
    notes       what is unlike IEEE arithmetic
    judged_by   taken: by this fingerprint; profile: by the one that --profile's file holds
    changed     what differs from the profile's, by dotted key: the profile's, this one's
    """

    known: Fingerprint
    allowed: tuple[str, ...]
    stored: Fingerprint | None

    JSON = "*known allowed notes judged_by changed"

    @property
    def notes(self) -> tuple[str, ...]:
        return self.known.notes(frozenset(self.allowed), self.stored)

    @property
    def judged_by(self) -> Literal["taken", "profile"]:
        return "profile" if self.stored else "taken"

    @property
    def changed(self) -> dict[str, tuple[str, str]]:
        from ridgeline.runtime.bringup.compare import print_changes

        return {} if self.stored is None else print_changes(asdict(self.stored), asdict(self.known))


class JudgedFindings:
    """What judged ops: right where it has no finding."""

    __slots__ = ()
    findings: tuple[OpFinding, ...]

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def verdict(self) -> Literal["right", "wrong"]:
        """Whether there is no finding."""
        return "wrong" if self.findings else "right"


STOPPED = "stopped"  # why the rest was not run


@dataclass(slots=True, kw_only=True)
class BringUp(JudgedFindings):
    """What became of it: `findings` are wrong results and ops that raise or kill; empty where the device is right.

    ops        distinct ops of the steps, with how often they were called; layers that were left out are counted
    missing    ops that the device does not have, with how often they were called
    unjudged   ops that the host cannot compute and no contract describes, with how often they were called
    probed     calls of the standing set that were judged
    fired      how often the fault answered, where one was given
    not_run    what could not be run at all, with the reason
    fingerprint    what is known of the arithmetic unit; allowed: what of it the user accepts
    fault      the fault that was loaded; null without one
    stored     the fingerprint of the chip's profile: judgements go by it, and what was taken is held against it
    isolated   whether ops ran in a process of their own, which may die
    inventory, speed    what the steps asked of the device, and how fast it was: no part of the verdict
    environment         device, driver and software
    """

    model: str
    device: str
    findings: tuple[OpFinding, ...] = ()
    ops: dict[str, int] = field(default_factory=dict)
    signatures: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    unjudged: dict[str, int] = field(default_factory=dict)
    probed: int = 0
    cut: tuple[str, ...] = ()
    fired: int | None = None
    ladder: tuple[Check, ...] = ()
    invariances: tuple[Check, ...] = ()
    determinism: Determinism = Determinism()
    not_run: dict[str, str] = field(default_factory=dict)
    isolated: bool = False
    fingerprint: Fingerprint | None = None
    stored: Fingerprint | None = None
    allowed: tuple[str, ...] = ()
    inventory: Inventory = Inventory()
    speed: Speed | None = None
    environment: dict[str, str] = field(default_factory=dict)
    fault: str | None = None

    JSON = """
        kind='bringup' model device verdict findings ladder invariances determinism not_run isolated
        inventory=inventory_report coverage speed=speed_report environment fingerprint=fingerprint_report fault fired
    """

    @property
    def is_stopped(self) -> bool:
        """Whether somebody asked for the end before all parts were run."""
        return STOPPED in self.not_run.values()

    @property
    def inventory_report(self) -> InventoryReport:
        """What the training step dispatched on the device."""
        ops = dict(sorted(self.ops.items()))
        return InventoryReport(ops=ops, signatures=self.signatures, inventory=self.inventory)

    @property
    def coverage(self) -> Coverage:
        """What was judged besides the step, and what was not."""
        return Coverage(probed=self.probed, unjudged=self.unjudged, left_out=self.cut)

    @property
    def speed_report(self) -> SpeedReport | None:
        """How fast the ops are; None where nothing was timed."""
        fallback = tuple(one.op for one in self.inventory.fallback)
        return SpeedReport(speed=self.speed, fallback=fallback) if self.speed else None

    @property
    def fingerprint_report(self) -> FingerprintReport | None:
        """The arithmetic unit; None where nothing is known of it."""
        if self.fingerprint is None:
            return None
        return FingerprintReport(known=self.fingerprint, allowed=self.allowed, stored=self.stored)

    def add(self, finding: OpFinding) -> bool:
        """Take a finding in: one for each op and format, the first place. Whether it is new."""
        for index, previous in enumerate(self.findings):
            if (previous.op, previous.dtype) == (finding.op, finding.dtype):
                several = replace(previous, times=previous.times + finding.times, repro=previous.repro or finding.repro)
                self.findings = (*self.findings[:index], several, *self.findings[index + 1 :])
                return False
        self.findings = (*self.findings, finding)
        return True


def unheard(*_: object) -> None:
    """Nobody is told how far it is, or keeps what is known before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsReport:
    """Every fault of a file in turn.

    caught   faults with a finding
    silent   faults that never answered
    """

    faults: tuple[BringUp, ...]

    JSON = "kind='bringup-faults' caught silent faults"

    @property
    def caught(self) -> int:
        return sum(bool(found.findings) for found in self.faults)

    @property
    def silent(self) -> tuple[str, ...]:
        return tuple(str(found.fault) for found in self.faults if not found.fired and not found.findings)
