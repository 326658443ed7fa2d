"""What all parts of a run share: the target, the device, the guard, and where findings and their reproductions go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ridgeline.runtime.bringup.capture import Place, Wrong
from ridgeline.runtime.bringup.faults import Fault
from ridgeline.runtime.bringup.findings import BringUp, OpFinding, unheard
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.journal import Entry
from ridgeline.runtime.bringup.observations import Rates
from ridgeline.runtime.bringup.outcome import Verdict
from ridgeline.runtime.bringup.repro import MOST_BYTES, SCRIPT, Recipe, save
from ridgeline.runtime.bringup.ridge import Lacks
from ridgeline.runtime.bringup.target import Target

WHOLE = "model"  # the module of what the model itself calls, outside of its parts


@dataclass(slots=True, kw_only=True)
class Session:
    """One run.

    folder      where reproductions go; None: nowhere
    faults      the file that the fault came from, for reproductions to load it again
    position    where a part that was interrupted goes on
    kept        is called when something is known that must not be lost
    personality    whose arithmetic the fake device has
    room        bytes that reproductions may still take
    lacks       kernels that the fake device does without
    rates       what is possible on the chip; graph_breaks: whether dynamo is asked where it would leave its graph
    """

    target: Target
    device: str
    found: BringUp
    seed: int = 0
    fault: Fault | None = None
    faults: str = ""
    guard: Guard = field(default_factory=Guard)
    folder: Path | None = None
    position: int = 0
    kept: Callable[[], None] = lambda: None
    tell: Callable[[str], None] = unheard
    room: int = MOST_BYTES
    personality: str = ""
    lacks: Lacks = Lacks()
    rates: Rates | None = None
    graph_breaks: bool = False
    rigs: dict[str, Any] = field(default_factory=dict)

    def note(self, wrong: list[Wrong]) -> None:
        """Take wrong calls in: one finding for each op and format, with the smallest inputs that show it."""
        by_key: dict[tuple[str, str], list[Wrong]] = {}
        for wrong_call in wrong:
            by_key.setdefault((wrong_call.op, wrong_call.dtype), []).append(wrong_call)
        for calls in by_key.values():
            first, smallest = calls[0], min(calls, key=_bytes)
            new = self.found.add(OpFinding(
                op=first.op, module=first.place.module or WHOLE, phase=first.place.phase, dtype=first.dtype,
                statistic=first.verdict.statistic, measured=first.verdict.measured, limit=first.verdict.limit,
                times=len(calls), message=first.message,
            ))  # fmt: skip
            if new:
                self.reproduce(first.op, first.dtype, smallest)

    def reproduce(self, op: str, dtype: str, wrong: Wrong) -> None:
        """Save the inputs of a call beside a script, and name it in the finding of its op and format."""
        if self.folder is None:
            return
        place = (
            self.folder / f"{len(self.found.findings):02d}-{op.replace('.', '-').replace(':', '-')}-{dtype or 'any'}"
        )
        verdict = wrong.verdict
        recipe = Recipe(
            op=op, device=self.device, module=wrong.place.module, phase=wrong.place.phase, statistic=verdict.statistic,
            measured=verdict.measured, limit=verdict.limit, faults=self.faults,
            fault="" if self.fault is None else self.fault.name,
        )  # fmt: skip
        try:
            folder = save(place, recipe, wrong.args, wrong.kwargs, self.room)
        except OSError as error:
            self.found.not_run["repro"] = str(error)
            return
        self.room -= folder
        if not folder:
            self.found.not_run[f"repro of {op}"] = f"its inputs take more than the {self.room:,} bytes that are left"
            return
        self.found.findings = tuple(
            replace(finding, repro=str(place / SCRIPT)) if (finding.op, finding.dtype) == (op, dtype) else finding
            for finding in self.found.findings
        )

    def saw(self, func: Any, host: tuple[Any, Any], entry: Entry) -> None:
        """A call that ended the process before, now computed by the host: its inputs are the reproduction."""
        previous = next(
            (f for f in self.found.findings if (f.op, f.dtype) == (entry.op, entry.dtype) and not f.repro), None
        )
        if previous is None or previous.statistic not in ("died", "hung"):
            return
        verdict = Verdict(right=False, statistic=previous.statistic, measured=previous.measured, limit=previous.limit)
        place = Place(module=previous.module, phase=previous.phase)
        wrong = Wrong(op=str(func), place=place, dtype=entry.dtype, verdict=verdict, args=host[0], kwargs=host[1])
        self.reproduce(entry.op, entry.dtype, wrong)
        self.kept()


def _bytes(wrong: Wrong) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves((wrong.args, wrong.kwargs)) if isinstance(x, Tensor))
