"""Turn the C++ sources of the shared-memory backend into a module, built once and kept in the user's cache.

The cache directory's name holds what the module depends on: a hash of the sources and flags, the versions of torch and
Python, and the processor, whose instructions it uses. Ranks that start at once build once: the first takes a file lock,
which a process that dies gives back.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import cache_directory

NAME = "ridge_shm"
SOURCES = Path(__file__).parent
FLAGS = ("-O3", "-fno-math-errno", "-march=native")
TAIL = 1500  # characters of a compiler's complaint
BUILDING = "building-"
STALE_S = 3600.0  # no build takes so long


def load_extension() -> ModuleType:
    if sys.platform != "linux":
        raise _refuse_build(sys.platform, "Linux", "take gloo here")
    place = cache_directory() / _key()
    path = place / f"{NAME}.so"
    if not path.exists():
        with _lock_folder(place):
            if not path.exists():
                _build(place)
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, str(path), loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _key() -> str:
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".hpp", ".inc"):
            digest.update(path.name.encode() + path.read_bytes())
    for part in (*FLAGS, os.environ.get("CXX", ""), platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    version = str(torch.__version__).replace("+", "-")
    return f"shm-torch{version}-py{sys.version_info.major}{sys.version_info.minor}-{digest.hexdigest()}"


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return line
    return ""


@contextlib.contextmanager
def _lock_folder(place: Path) -> Iterator[None]:
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = open(place.with_name(place.name + ".lock"), "w", encoding="utf-8")  # noqa: SIM115
    except OSError as wrong:
        todo = "set RIDGELINE_CACHE to a directory of yours"
        raise _refuse_build(f"{place.parent}: {wrong.strerror}", "a directory that can be written", todo) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(place: Path) -> None:
    """Compile into a directory of its own, which takes its name when it is whole."""
    from torch.utils import cpp_extension

    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        todo = "install g++ 11 or newer (apt install g++), or set CXX; gloo needs none"
        raise _refuse_build(f"no C++ compiler {compiler!r}", "one, to build the backend on its first use", todo)
    sys.stderr.write(f"ridge_shm: building the backend for this torch and processor, once, into {place}\n")
    _remove_stale(place.parent)
    fresh = Path(tempfile.mkdtemp(prefix=BUILDING, dir=place.parent))
    try:
        with contextlib.redirect_stdout(io.StringIO()), _ninja_in_path():
            cpp_extension.load(
                NAME,
                [str(path) for path in sorted(SOURCES.glob("*.cpp"))],
                extra_cflags=list(FLAGS),
                build_directory=str(fresh),
                is_python_module=False,
                is_standalone=False,
            )
        os.replace(fresh, place)
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as wrong:
        tail = f"{wrong}"[-TAIL:]
        todo = "the compiler's words are above; gloo needs no build"
        raise _refuse_build(f"the build failed: {tail}", "a compiler for C++20 and torch's headers", todo) from wrong
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextlib.contextmanager
def _ninja_in_path() -> Iterator[None]:
    """ninja where a shell finds it, or where pip put it beside this Python, whose environment may not be active."""
    from torch.utils import cpp_extension

    before = os.environ.get("PATH", "")
    try:
        if not cpp_extension.is_ninja_available():
            os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
        if not cpp_extension.is_ninja_available():
            raise _refuse_build("no ninja", "ninja, which torch's extension loader builds with", "`pip install ninja`")
        yield
    finally:
        os.environ["PATH"] = before


def _remove_stale(parent: Path) -> None:
    for leftover in parent.glob(f"{BUILDING}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > STALE_S:
                shutil.rmtree(leftover, ignore_errors=True)


def _refuse_build(given: str, expected: str, todo: str) -> InputError:
    return InputError(Problem(path=NAME, given=given, expected=expected, todo=todo))
