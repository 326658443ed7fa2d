"""What bringing a model up on a device brought, as values: no torch is needed to read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from sys import float_info
from typing import Literal

from ridgeline.runtime.bringup.observations import Inventory, Speed
from ridgeline.runtime.bringup.prints import Fingerprint

Told = Literal["pass", "fail", "not run"]


def finite(value: float) -> float:
    """Infinities and what is no number at all as the largest number, which JSON can hold."""
    return value if isfinite(value) else float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFinding:
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

    JSON = "* measured=printed_measured limit=printed_limit"

    @property
    def printed_measured(self) -> float:
        return finite(self.measured)

    @property
    def printed_limit(self) -> float:
        return finite(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
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

    JSON = "* measured=printed_measured limit=printed_limit"

    @property
    def printed_measured(self) -> float:
        return finite(self.measured)

    @property
    def printed_limit(self) -> float:
        return finite(self.limit)


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


@dataclass(slots=True, kw_only=True)
class BringUp:
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
    def verdict(self) -> Literal["right", "wrong"]:
        """Whether there is no finding."""
        return "wrong" if self.findings else "right"

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

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def add(self, finding: OpFinding) -> bool:
        """Take a finding in: one for each op and format, the first place. Whether it is new."""
        for index, previous in enumerate(self.findings):
            if (previous.op, previous.dtype) == (finding.op, finding.dtype):
                several = replace(previous, times=previous.times + finding.times, repro=previous.repro or finding.repro)
                self.findings = (*self.findings[:index], several, *self.findings[index + 1 :])
                return False
        self.findings = (*self.findings, finding)
        return True


def unheard(line: str) -> None:
    """Nobody is told how far it is."""


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
