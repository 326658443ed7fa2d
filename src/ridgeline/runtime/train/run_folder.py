"""Own the folder of a run: one run at a time writes into it, and none deletes what another one wrote.

    FOLDER/.lock           held by the process that runs; the system lets it go when that process ends
    FOLDER/metrics.jsonl   one line a step        FOLDER/checkpoints/   see `checkpoint`

A folder that holds a run is entered again by --resume alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import refuse_unwritable

METRICS = "metrics.jsonl"
LOCK = ".lock"
CHECKPOINTS = "checkpoints"


def checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, newest first."""
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*") if path.is_dir())
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


@contextmanager
def own_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold the folder while the block runs; an `InputError` where another run has it or has written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        given_text = f"{folder} ({wrong.strerror})"
        raise InputError(Problem(path="-o", given=given_text, expected="a folder that can be made")) from None
    refuse_unwritable(folder / METRICS)
    with _lock(folder):
        if not resume and (what := _earlier_run(folder)):
            todo = "add --resume to go on with it, or name another folder"
            raise InputError(Problem(path="-o", given=f"{folder}, which holds {what}", expected="no run", todo=todo))
        yield


def _earlier_run(folder: Path) -> str:
    saved_steps = steps(folder / CHECKPOINTS)
    if saved_steps:
        return f"a run with a checkpoint of step {saved_steps[0]}"
    metrics = folder / METRICS
    return f"a run's {METRICS}" if metrics.is_file() and metrics.stat().st_size else ""


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """An advisory lock of the system, with the owner's process number as its text."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nobody can be asked
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            owner = stream.read(32).strip() or "unknown"
            given_text = f"{folder}, into which process {owner} writes"
            todo = "wait for it, or name another folder"
            raise InputError(Problem(path="-o", given=given_text, expected="a folder of one run", todo=todo)) from None
        except OSError:  # a file system without locks
            pass
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
