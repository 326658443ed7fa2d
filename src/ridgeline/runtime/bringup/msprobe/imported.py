"""Judge every call of a dump: by its contract where tensors were dumped, else by what its statistics may be.

bringup_msprobe(folder)       findings with API, module and phase, and how each call was judged
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ridgeline.runtime.bringup.findings import OpFinding, unheard
from ridgeline.runtime.bringup.msprobe.dump import ApiCall, Dump, TensorNote, read_dumps
from ridgeline.runtime.bringup.msprobe.replay import replay_backward, replay_forward, replayable
from ridgeline.runtime.bringup.msprobe.statistics import judge_statistics
from ridgeline.runtime.bringup.msprobe.tensor_files import UnreadableError
from ridgeline.runtime.bringup.outcome import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDump:
    """What a folder of msprobe holds.

    replayed         calls that their contract judged; by_statistics: calls of which only figures were judged
    unjudged         APIs that nothing judged, with how often they were called
    unreadable       why tensors were not used, with how often
    """

    folder: str
    framework: str
    tasks: tuple[str, ...]
    dumps: int
    calls: int
    findings: tuple[OpFinding, ...]
    replayed: int
    by_statistics: int
    unjudged: dict[str, int]
    unreadable: dict[str, int]

    JSON = """
        kind='bringup-msprobe' folder framework tasks dumps calls verdict findings replayed by_statistics unjudged
        unreadable
    """

    @property
    def verdict(self) -> Literal["right", "wrong"]:
        """Whether there is no finding."""
        return "wrong" if self.findings else "right"

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


@dataclass(slots=True)
class _Ledger:
    replayed: int = 0
    by_statistics: int = 0
    unjudged: dict[str, int] | None = None
    unreadable: dict[str, int] | None = None

    def count(self, name: str, key: str) -> None:
        table = getattr(self, name) or {}
        table[key] = table.get(key, 0) + 1
        setattr(self, name, table)


def bringup_msprobe(folder: Path, tell: Callable[[str], None] = unheard) -> ImportedDump:
    """Judge what another machine dumped."""
    dumps = read_dumps(folder)
    ledger = _Ledger()
    wrong: list[tuple[ApiCall, str, Verdict]] = []
    for dump in dumps:
        tell(f"{dump.label or folder.name}: {len(dump.calls)} calls of {dump.framework} at level {dump.level}")
        wrong += _judge(dump, ledger, f"{dump.label}: " if len(dumps) > 1 else "")
    return ImportedDump(
        folder=str(folder), framework=dumps[0].framework, tasks=tuple(dict.fromkeys(dump.task for dump in dumps)),
        dumps=len(dumps), calls=sum(len(dump.calls) for dump in dumps), findings=tuple(_findings(wrong)),
        replayed=ledger.replayed, by_statistics=ledger.by_statistics, unjudged=ledger.unjudged or {},
        unreadable=ledger.unreadable or {},
    )  # fmt: skip


def _judge(dump: Dump, ledger: _Ledger, prefix: str) -> Iterator[tuple[ApiCall, str, Verdict]]:
    forwards = {(call.api, call.index): call for call in dump.calls if call.phase == "forward"}
    for call in dump.calls:
        verdict = _replay_call(call, forwards.get((call.api, call.index)), ledger)
        if verdict is not None:
            ledger.replayed += 1
        else:
            verdict = judge_statistics(call)
            if verdict is None:
                ledger.count("unjudged", call.api)
                continue
            ledger.by_statistics += 1
        if not verdict.right:
            yield call, prefix + call.module, verdict


def _replay_call(call: ApiCall, forward: ApiCall | None, ledger: _Ledger) -> Verdict | None:
    """The contract's verdict; None where the call cannot be replayed."""
    if forward is None or not replayable(call) or not replayable(forward):
        return None
    try:
        return replay_forward(call) if call.phase == "forward" else replay_backward(call, forward)
    except UnreadableError as error:
        ledger.count("unreadable", str(error))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, KeyError, AttributeError) as error:
        ledger.count("unreadable", f"{call.api} does not take what was dumped: {type(error).__name__}")
    return None


def _findings(wrong: list[tuple[ApiCall, str, Verdict]]) -> Iterator[OpFinding]:
    """One for each API, phase and format: where it was first, and how often."""
    first: dict[tuple[str, str, str], tuple[str, Verdict]] = {}
    times: dict[tuple[str, str, str], int] = {}
    for call, module, verdict in wrong:
        form = next((note.dtype for note in call.outputs if isinstance(note, TensorNote)), "")
        key = call.api, call.phase, form
        first.setdefault(key, (module, verdict))
        times[key] = times.get(key, 0) + 1
    for (api, phase, form), (module, verdict) in first.items():
        yield OpFinding(
            op=api, module=module, phase=phase, dtype=form, statistic=verdict.statistic, measured=verdict.measured,
            limit=verdict.limit, times=times[api, phase, form],
        )  # fmt: skip
