"""Where the shared-memory backend is built, and what is said where it cannot be; nothing is compiled here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.runtime.shm import build

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the backend is for Linux")


def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match=r"no C\+\+ compiler 'no-such-compiler'.*install g\+\+"):
        build.load_extension()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="RIDGELINE_CACHE"):
        build.load_extension()


def test_every_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build._key()
    for path in build.SOURCES.iterdir():
        if path.suffix in (".cpp", ".hpp", ".inc"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build._key() == before
    (tmp_path / "reduce.cpp").write_text("// changed")
    assert build._key() != before
