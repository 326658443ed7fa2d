"""Checkpoint folders: which are whole, which is the newest, and how one comes to be at once or not at all.

    FOLDER/step-00000020/           torch.distributed.checkpoint's own files
    FOLDER/step-00000020/sound.json step, and size and SHA-256 of every file: written last
    FOLDER/.step-00000030.part/     one that is being written; renamed when it is whole

A folder without `sound.json`, or with a file that is not as it says, is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from ridgeline.core.files import write_text

SOUND = "sound.json"
KEPT = 2  # checkpoints: the newest, and the one before it should that be damaged


def part(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return folder / f".step-{step:08d}.part"


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Where it stands once it is whole."""
    return folder / f"step-{step:08d}"


def publish(folder: Path, step: int, facts: dict[str, Any]) -> Path:
    """Make a written checkpoint count: note its files, rename it, and let go of old ones."""
    written, final = part(folder, step), checkpoint_folder(folder, step)
    files = {path.name: _seal(path) for path in sorted(written.iterdir()) if path.name != SOUND}
    write_text(written / SOUND, json.dumps({"step": step, **facts, "files": files}, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)
    os.replace(written, final)
    for old in steps(folder)[KEPT:]:
        shutil.rmtree(checkpoint_folder(folder, old), ignore_errors=True)
    return final


def forget_parts(folder: Path) -> None:
    """Make the folder, without what an earlier run left half written."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob(".step-*.part"):
        shutil.rmtree(part, ignore_errors=True)


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, newest first."""
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*") if path.is_dir())
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def newest_sound(folder: Path) -> tuple[Path | None, int, list[str]]:
    """The newest checkpoint that is as it was written (or None), its step, and what is wrong with newer ones."""
    skipped_steps: list[str] = []
    for step in steps(folder):
        wrong = damage(checkpoint_folder(folder, step))
        if wrong is None:
            return checkpoint_folder(folder, step), step, skipped_steps
        skipped_steps.append(f"checkpoint of step {step} is damaged: {wrong}")
    return None, 0, skipped_steps


def facts_of(checkpoint: Path) -> dict[str, Any]:
    """What was noted beside a sound checkpoint."""
    facts: dict[str, Any] = json.loads((checkpoint / SOUND).read_text(encoding="utf-8"))
    return {name: value for name, value in facts.items() if name != "files"}


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        facts = json.loads((checkpoint / SOUND).read_text(encoding="utf-8"))
        files = dict(facts["files"])
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        return f"{SOUND}: {type(wrong).__name__}"
    for name, seal in files.items():
        if Path(name).name != name:
            return f"{SOUND} names a file outside"
        try:
            found = _seal(checkpoint / name)
        except OSError as wrong:
            return f"{name}: {wrong.strerror}"
        if found != seal:
            return f"{name}: {found['bytes']} bytes, not as written"
    return None


def _seal(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
