"""Bring a model up in a process that may die: an op that kills it, or hangs, is a finding, and the run goes on.

    bringup(model, device)      a catalog id, a config.json, `module:function`, or a torch module with example inputs
    fault_names(file, name)     the faults of a file

Jobs and answers go pickled over pipes. After a death the journal says which op was under way. The next process has the
host compute that signature (and, if the op kills again with another one, every call of it), and goes on with the part
that was interrupted.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.runtime.bringup.faults import CORPUS, FAULTS, choose_faults, split
from ridgeline.runtime.bringup.findings import STOPPED, BringUp, Fingerprint, OpFinding, Rates
from ridgeline.runtime.bringup.guard import OpJournal
from ridgeline.runtime.bringup.target import OwnModule, Target, one_of_each, target_of
from ridgeline.runtime.probe.supervisor import ENTRY, end_process, exit_text, written_lines

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptJob:
    """An attempt: from which part and position on, with what is known so far; without a target only faults are named.

    healed    ops and signatures that the host computes, since they ended an earlier attempt
    personality    whose arithmetic the fake device has
    only      kinds of parts; empty: all of them
    rates     what is possible on the chip, for the speed of its ops; graph_breaks: ask dynamo too
    cwd       the folder of whoever asks, and the modules that it finds (paths)
    """

    target: Target | None = None
    device: str = ""
    journal: str = ""
    found: BringUp | None = None
    at: int = 0
    position: int = 0
    room: int = 0
    seed: int = 0
    faults: str = ""
    fault: str = ""
    folder: str = ""
    healed: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    rates: Rates | None = None
    graph_breaks: bool = False
    cwd: str = ""
    paths: tuple[str, ...] = ()
    personality: str = ""


def put(stream: BinaryIO, value: object) -> None:
    """Write one value."""
    payload = pickle.dumps(value)
    stream.write(LENGTH.pack(len(payload)) + payload)
    stream.flush()


def take(stream: BinaryIO) -> Any:
    """Read one value; None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    payload = stream.read(length)
    return pickle.loads(payload) if len(payload) == length else None


OP_LIMIT_S = {"cpu": 10.0, "ridge": 10.0}  # how long one op may take
OTHER_LIMIT_S = 180.0  # the first call of a device may compile
SILENT_LIMIT_S = 900.0  # without any answer, whatever goes on
ALLOWED = ["tf32"]
STOPPED_CODE = 130
DEATHS = 24  # after which what is left is not run
MOST_BYTES = 100_000_000  # that reproductions may take in all


class Server:
    """The process that forks."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (as long as it)
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENTRY.format(module="ridgeline.runtime.bringup.run_parts"), json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            start_new_session=True,  # Ctrl-C is for whoever waits, and must not end the op under way
        )  # fmt: skip
        self.answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()
        atexit.register(self.close)

    def _pump(self) -> None:
        assert self.process.stdout is not None
        while (answer := take(self.process.stdout)) is not None:  # type: ignore[arg-type]
            self.answers.put(answer)
        self.answers.put(("gone",))

    def send(self, job: AttemptJob) -> None:
        """Start an attempt."""
        assert self.process.stdin is not None
        put(self.process.stdin, job)  # type: ignore[arg-type]

    def last_words(self) -> str:
        """The last line on its standard error."""
        return next(reversed(written_lines(self.errors)), "")[:200]

    def close(self) -> None:
        """End it, and the process that it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        end_process(self.process)


@cache
def server() -> Server:
    """One for the life of this process: torch is imported once."""
    return Server()


@dataclass(slots=True, kw_only=True)
class Attempts:
    """A run over several processes: what is known, and where the next one goes on."""

    job: AttemptJob
    limit_s: float
    wait: ProgressCallback = ignore_progress
    parts: int = 0
    what: str = ""
    deaths: Counter[str] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    pid: int = 0

    def run(self) -> None:
        """Attempt until every part was run, too many processes died, or whoever waits asks to stop."""
        while True:
            has_ended = self._once()
            if has_ended is None:
                return
            if self.job.found is not None and self.job.found.is_stopped:
                return
            if self.job.found is None:
                raise InputError(f"the file of faults ends the process that reads it: {exit_text(has_ended)}")
            if sum(self.deaths.values()) >= DEATHS:
                self.job.found.not_run["the rest"] = f"{DEATHS} processes died"
                return

    def _once(self) -> int | None:
        """One process to its end: None, or how it died: an op may end it with any code."""
        process = server()
        process.send(self.job)
        hung, done, last_heard = False, False, time.monotonic()
        while True:
            if self._is_unwanted():
                return STOPPED_CODE
            try:
                answer = process.answers.get(timeout=0.5)
                last_heard = time.monotonic()
            except queue.Empty:
                hung = hung or self._hangs(time.monotonic() - last_heard)
                continue
            match answer:
                case ("pid", pid, parts):
                    self.pid, self.parts = pid, parts
                case ("tell", line):
                    self.what = line
                case ("kept", at, position, found, room):
                    self.job = replace(self.job, at=at, position=position, found=found, room=room)
                case ("faults", names):
                    self.names = names
                case ("refused", why):
                    refusal: Any = why
                    while process.answers.get()[0] not in ("ended", "gone"):
                        pass
                    raise InputError(refusal)
                case ("done",):
                    done = True
                case ("ended", code):
                    return None if done else self._note_death(code, hung)
                case ("gone",):
                    server.cache_clear()
                    raise InputError(f"the process that runs the device's ops failed: {process.last_words()}")

    def _is_unwanted(self) -> bool:
        """Tell whoever waits how far it is; once they ask to stop, end the process and note what was not run."""
        found = self.job.found
        if found is None:
            return False
        judged_text = f"{len(found.findings)} finding(s) in {sum(found.ops.values()) + found.probed:,} calls"
        if self.wait(self.job.at, self.parts, self.what, judged_text) is not False:
            return False
        found.not_run["the rest"] = STOPPED
        server().close()
        server.cache_clear()
        return True

    def _hangs(self, silent_s: float) -> bool:
        """End a process whose op does not come back."""
        if not self.job.journal or not self.pid:
            return False
        glimpse = OpJournal(Path(self.job.journal)).read()
        if max(glimpse.running_s - self.limit_s, silent_s - SILENT_LIMIT_S) <= 0:
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True

    def _note_death(self, code: int, hung: bool) -> int:
        """Take a death in: a finding if an op was under way, and what the next process is to leave to the host."""
        bring_up = self.job.found
        if bring_up is None or not self.job.journal:
            return code
        glimpse = OpJournal(Path(self.job.journal)).read()
        entry = glimpse.entry
        self.deaths[entry.op] += 1
        if not glimpse.running:
            bring_up.not_run[f"part {self.job.at + 1}"] = (
                f"{exit_text(code)} after {entry.op or 'nothing'}: {server().last_words()}"
            )
            self.job = replace(self.job, at=self.job.at + 1, position=0)
            return code
        message = entry.message or (f"no result within {self.limit_s:.0f} s" if hung else exit_text(code))
        bring_up.add(OpFinding(
            op=entry.op, module=entry.module or "model", phase=entry.phase, dtype=entry.dtype, measured=1.0,
            limit=0.5, statistic="hung" if hung else "died", message=message,
        ))  # fmt: skip
        # one signature at first, then every call of the op
        self.job = replace(self.job, healed=self.job.healed | {entry.key if self.deaths[entry.op] < 2 else entry.op})
        OpJournal(Path(self.job.journal), create=True)
        return code


def bringup(
    model: object, device: str, *, example_inputs: object = None, faults: Path | str = "", fault: str = "",
    seed: int = 0, folder: Path | str = "", progress: ProgressCallback = ignore_progress, limit_s: float = 0.0,
    only: tuple[str, ...] = (), rates: Rates | None = None, graph_breaks: bool = False, allow: tuple[str, ...] = (),
    stored: Fingerprint | None = None,
) -> BringUp:  # fmt: skip
    """Judge every op of a model on a device, climb the ladder, try the invariances; say what is wrong.

    model            a catalog id, a config.json, `module:function`, a ModelSpec, or a torch module with example_inputs
    faults, fault    a file of faults for the device `ridge`, and which of them
    folder           where reproductions of findings go
    limit_s          how long one op may take
    only             fingerprint, steps, generation, standing, ladder, invariances, determinism, inventory, speed;
                     empty: all
    rates            what is possible on the chip, to hold the speed of ops against; else by the device's name
    graph_breaks     ask dynamo where it would leave its graph
    allow            what the device may do and is not to be a finding: tf32
    stored           the fingerprint of the chip's profile: ops are judged by it instead of by the one that is taken
    progress         hears of every part; where it answers False the rest is not run, and the report says so
    """
    target = target_of(model, example_inputs)
    if not isinstance(target, OwnModule):
        one_of_each(target)  # refused before anything starts
    if isinstance(target, OwnModule) and not target.portable:
        from ridgeline.runtime.bringup.run_parts import bringup as unguarded  # no other process could make the module

        def tell(line: str) -> None:
            progress(0, 0, line)

        return unguarded(target, device, seed=seed, tell=tell, stored=stored)
    device_text, (device, personality) = device, split(device)
    kind = device.partition(":")[0]
    with tempfile.TemporaryDirectory(prefix="ridgeline-bringup-") as scratch:
        journal = Path(scratch) / "journal"
        OpJournal(journal, create=True)
        job = AttemptJob(
            target=replace(target, held=None) if isinstance(target, OwnModule) else target, device=device, seed=seed,
            found=BringUp(model=target.id, device=device_text, isolated=True, allowed=allow, stored=stored),
            journal=str(journal), room=MOST_BYTES,
            faults=_file(faults), fault=fault, personality=personality,
            folder=str(Path(folder).resolve()) if folder else "", cwd=str(Path.cwd()), paths=tuple(sys.path),
            only=only, rates=rates, graph_breaks=graph_breaks,
        )  # fmt: skip
        attempts = Attempts(job=job, limit_s=limit_s or OP_LIMIT_S.get(kind, OTHER_LIMIT_S), wait=progress)
        attempts.run()
    assert attempts.job.found is not None
    return attempts.job.found


def fault_names(file: Path, name: str = "") -> list[str]:
    """The faults of a file, or the one of that name; a file of somebody's is run in another process."""
    if str(file) == CORPUS:
        return list(choose_faults(FAULTS, name))
    attempts = Attempts(
        job=AttemptJob(faults=_file(file), fault=name, cwd=str(Path.cwd()), paths=tuple(sys.path)), limit_s=60.0
    )
    attempts.run()
    return attempts.names


def allowances(names: list[str]) -> tuple[str, ...]:
    """What may be allowed, of what was asked for."""
    for name in names:
        if name not in ALLOWED:
            raise InputError(not_among("--allow", name, ALLOWED, "something a device may do"))
    return tuple(names)


def _file(faults: Path | str) -> str:
    """Where faults are read from: a file, or the corpus."""
    return str(faults) if str(faults) in ("", CORPUS) else str(Path(faults).resolve())


def folder_of(asked: Path | None, target: Target, device: str, fault: str = "") -> Path:
    """Where reproductions go: the folder asked for, or one of the working directory named after what is tried."""
    words = "-".join(part for part in (target.id, device, fault) if part)
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in words)
    if asked is None:
        base = Path.cwd()
        return (base if os.access(base, os.W_OK) else Path(tempfile.gettempdir())) / "ridgeline-bringup" / plain
    if asked.exists() and not asked.is_dir():
        raise InputError(Problem(path="-o", given=str(asked), expected="a folder", todo="name another"))
    return asked / fault if fault else asked
