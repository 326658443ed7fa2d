"""Turn C sources (the simulator's core, and others beside it) into a library, built once with the machine's compiler.

The name holds a hash of sources, flags and compiler, and the processor's family. Flags keep to plain IEEE arithmetic,
so that every machine gives the same digits. Where there is no compiler, or RIDGELINE_NATIVE is off, there is no core,
and `fluid` takes columns and windows.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ridgeline.core.files import cache_directory

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
LONGEST_S = 120  # that a compiler may take


def core() -> ctypes.CDLL | None:
    """The simulator's library, or None where it cannot be had."""
    loaded_core = library(SOURCES, "flows")
    if loaded_core is None:
        return None
    for name in ("make_queues", "make_turns", "run_moments", "run_turns", "senders_share", "choose_ways"):
        getattr(loaded_core, name).restype = ctypes.c_int
    return loaded_core


def library(sources: Path, name: str) -> ctypes.CDLL | None:
    """The library of a directory of sources, or None where there is no compiler, or RIDGELINE_NATIVE is off."""
    if os.environ.get("RIDGELINE_NATIVE", "").lower() in ("off", "0", "no"):
        return None
    compiler = shlex.split(os.environ.get("CC") or "cc")
    return _load_library(tuple(compiler), cache_directory(), sources, name)


@cache
def _load_library(compiler: tuple[str, ...], place: Path, sources: Path, name: str) -> ctypes.CDLL | None:
    path = place / f"{name}-{platform.machine()}-{_hash(compiler, sources)}.so"
    try:
        if not path.exists():
            _build(compiler, sources, path)
        if hasattr(os, "getuid") and path.stat().st_uid not in (os.getuid(), 0):
            return None  # somebody else's
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None


def _hash(compiler: tuple[str, ...], sources: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(sources.iterdir()):
        if path.suffix in (".c", ".h"):
            digest.update(path.name.encode() + path.read_bytes())
    for part in (*FLAGS, *compiler, platform.system()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _build(compiler: tuple[str, ...], sources: Path, path: Path) -> None:
    """Compile into a directory of its own; the library takes its name when it is whole."""
    if shutil.which(compiler[0]) is None:
        raise OSError("no C compiler")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="building-", dir=path.parent) as fresh:
        built_file = Path(fresh) / "core.so"
        files = [str(source) for source in sorted(sources.glob("*.c"))]
        subprocess.run(
            [*compiler, *FLAGS, "-o", str(built_file), *files, "-lm"],
            check=True,
            capture_output=True,
            timeout=LONGEST_S,
        )
        os.replace(built_file, path)
