"""What bringing a model up on a device brought, as values: no torch is needed to read them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ridgeline.runtime.bringup.observations import Inventory, Speed
from ridgeline.runtime.bringup.prints import Fingerprint

Told = Literal["pass", "fail", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
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
    stored     the fingerprint of the chip's profile: judgements go by it, and what was taken is held against it
    isolated   whether ops ran in a process of their own, which may die
    inventory, speed    what the steps asked of the device, and how fast it was: no part of the verdict
    environment         device, driver and software
    """

    model: str
    device: str
    findings: tuple[Finding, ...] = ()
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

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def add(self, finding: Finding) -> bool:
        """Take a finding in: one for each op and format, the first place. Whether it is new."""
        for index, known in enumerate(self.findings):
            if (known.op, known.dtype) == (finding.op, finding.dtype):
                several = replace(known, times=known.times + finding.times, repro=known.repro or finding.repro)
                self.findings = (*self.findings[:index], several, *self.findings[index + 1 :])
                return False
        self.findings = (*self.findings, finding)
        return True


def unheard(line: str) -> None:
    """Nobody is told how far it is."""
