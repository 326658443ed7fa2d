"""Run cases in a child process that may die, until the time is up; a row is kept before the next case begins."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, AnyStr

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe.case import KernelCase, buffer_bytes_of

START_LIMIT_S = 300.0
DEATHS, REFUSALS = 2, 3  # of one op, impl and format without success, after which the rest of them is left out
SLOWEST_SHARE = 1 / 1600  # of the time box that one call may be expected to take
MEMORY_SHARE = 0.6  # of the free memory that a case may hold
ENTRY = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; sys.exit(main())"
CHILD = "ridgeline.runtime.probe.child"

Keep = Callable[[str, JsonObject], None]  # the case's key, its row
Watch = Callable[[int, int, KernelCase, Sequence[JsonObject]], bool | None]
"""Hears cases done, cases planned, the next one and the rows so far; answers False to stop."""


def ignore_progress(*_: object) -> None:
    """Nobody is told how far a run is, or keeps a row before its end."""


class Refused(Exception):
    """The device cannot be used at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure: the device, packages to import first, the time box, the seed, seconds a measurement."""

    device: str
    minutes: float
    imports: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Child:
    """One running child, with the lines it wrote and the file its standard error goes to."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str | None]
    errors: IO[str]

    def send(self, value: JsonObject) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
        except OSError:  # it is gone; the next receive says of what
            return

    def receive(self, limit_s: float) -> JsonObject | str:
        """The next answer, or why there is none."""
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            return f"no answer within {limit_s:.0f} s; the process was ended"
        if line is None:
            return self._death()
        answer: JsonObject = json.loads(line)
        return answer

    def _death(self) -> str:
        how = exit_text(self.process.wait())
        last = next((line for line in reversed(written_lines(self.errors)) if "Error" in line or "error" in line), "")
        return how + (f": {last}"[:160] if last else "")

    def close(self) -> None:
        end_process(self.process)


def written_lines(errors: IO[str]) -> list[str]:
    """What a process has written to its standard error, without empty lines."""
    errors.seek(0)
    return [line.strip() for line in errors.read().splitlines() if line.strip()]


def exit_text(code: int) -> str:
    """How a process ended: by minus the signal, or by an exit code."""
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"the process {how}"


def end_process(process: subprocess.Popen[AnyStr]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def start_child(module: str = CHILD, environment: dict[str, str] | None = None) -> Child:
    """A new child of this interpreter that finds the same modules."""
    errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (as long as the child)
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY.format(module=module), json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,  # Ctrl-C is for whoever waits, and must not cost the row under way
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    return Child(process=process, lines=lines, errors=errors)


@dataclass(slots=True, kw_only=True)
class ProbeRun:
    """A run under way: rows so far, and what is known of the device once a child has said it."""

    settings: Settings
    keep: Keep
    done: set[str]
    rows: list[JsonObject] = field(default_factory=list)
    ready: JsonObject = field(default_factory=dict)
    successes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    deaths: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    left: int = 0
    is_stopped: bool = False

    def open(self) -> Child:
        child = start_child()
        child.send({"open": asdict(self.settings)})
        answer = child.receive(START_LIMIT_S)
        if isinstance(answer, str):
            raise Refused(f"the process that opens {self.settings.device!r} failed: {answer}")
        if "refused" in answer:
            child.close()
            raise Refused(str(answer["refused"]))
        self.ready = self.ready or answer["ready"]
        return child

    def is_wanted(self, case: KernelCase) -> bool:
        """Whether a case is still to be taken and worth trying."""
        family = (case.kernel.op, case.kernel.impl, case.kernel.dtype)
        hopeless = self.successes[family] == 0 and self.failures[family] >= REFUSALS
        return not (case.key() in self.done or hopeless or self.deaths[family] >= DEATHS)

    def note(self, case: KernelCase, row: JsonObject, died: bool = False) -> None:
        family = (case.kernel.op, case.kernel.impl, case.kernel.dtype)
        self.rows.append(row)
        self.done.add(case.key())
        self.keep(case.key(), row)
        (self.successes if row.get("ok") else self.failures)[family] += 1
        self.deaths[family] += died


def supervise(
    settings: Settings,
    plan: Callable[[JsonObject], Sequence[KernelCase]],
    *,
    keep: Keep = ignore_progress,
    done: Iterable[str] = (),
    watch: Watch = ignore_progress,
) -> ProbeRun:
    """Take cases in order until they or the minutes are up, or whoever watches answers False.

    plan    from what the child says of the device (cache_bytes, free_bytes, rates, extra) to the cases
    keep    is given every row as soon as it is there
    done    keys of cases that an earlier run took
    """
    began = time.monotonic()
    run = ProbeRun(settings=settings, keep=keep, done=set(done))
    child: Child | None = run.open()
    planned_cases = [case for case in plan(run.ready) if case.key() not in run.done and affordable(case, run)]
    measured_cases = 0
    try:
        for measured_cases, case in enumerate(planned_cases):
            if time.monotonic() - began > settings.minutes * 60:
                break
            if not run.is_wanted(case):
                continue
            if watch(measured_cases, len(planned_cases), case, run.rows) is False:
                run.is_stopped = True
                break
            child = child or run.open()
            child.send({"case": case.message()})
            answer = child.receive(case.limit_s)
            if isinstance(answer, str):
                run.note(case, {**case.identity(), "ok": False, "why": answer}, died=True)
                child = None
            else:
                run.note(case, answer["row"])
                if answer["poisoned"]:
                    child.close()
                    child = None
        else:
            measured_cases = len(planned_cases)
    finally:
        if child is not None:
            child.close()
    run.left = len(planned_cases) - measured_cases
    return run


def affordable(case: KernelCase, run: ProbeRun) -> bool:
    """Whether a call is expected to be short, and its buffers to fit."""
    rates, free = run.ready["rates"], float(run.ready["free_bytes"])
    call_s = max(case.kernel.flops / float(rates["flops"]), case.kernel.bytes / float(rates["bytes"]))
    return call_s <= run.settings.minutes * 60 * SLOWEST_SHARE and buffer_bytes_of(case) <= MEMORY_SHARE * free
