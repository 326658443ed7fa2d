"""Take files that are dropped on a page: within budgets, into a folder of this start, never executed.

    bytes    of one file and of all together; what is more is refused while it arrives
    files    so many at once; the oldest make way
    names    letters, digits, dot, dash and underscore of the name that came; the folder is our own

Reading them has budgets of its own: readers inflate in a stream and stop, and a page stops waiting.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from ridgeline.core.errors import InputError, Problem

MOST_BYTES = 512 * 1024 * 1024
ALL_BYTES = 4 * MOST_BYTES
MOST_FILES = 64
_OUTSIDE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(name: str) -> str:
    """A name for a file of the shelf, whatever came: no folder, no leading dot, not endless.

    >>> safe_name("../../etc/passwd"), safe_name(".bashrc"), safe_name("a b.json")
    ('passwd', 'bashrc', 'a_b.json')
    """
    bare = _OUTSIDE.sub("_", name.replace("\\", "/").rsplit("/", 1)[-1]).lstrip("._")
    return bare[-100:] or "file"


class FileShelf:
    """Files that were opened or dropped, by id; those that were dropped lie in a folder that ends with the server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ridgeline-workbench-"))
        self.paths: dict[str, Path] = {}

    def add(self, path: Path) -> str:
        """The id of a file that the user named when the server was started; it stays where it is."""
        if not path.exists():
            expectation = "a file or a folder that is there"
            raise InputError(Problem(path="FILE", given=str(path)[:200], expected=expectation, todo="check the path"))
        id = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        self.paths[id] = path.resolve()
        return id

    async def receive(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        """The id of a file that arrives; equal bytes under one name have one id."""
        target, digest, size = self.folder / f"arriving-{id(chunks)}", hashlib.sha256(name.encode()), 0
        room = min(MOST_BYTES, ALL_BYTES - self._stored_bytes())
        try:
            with target.open("wb") as stream:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > room:
                        raise _too_much(name, room)
                    digest.update(chunk)
                    stream.write(chunk)
            if not size:
                todo = "choose another file"
                raise InputError(Problem(path=safe_name(name), given="no bytes", expected="a file", todo=todo))
            key = digest.hexdigest()[:16]
            folder = self.folder / key
            folder.mkdir(exist_ok=True)
            self.paths[key] = target.rename(folder / safe_name(name))
        finally:
            target.unlink(missing_ok=True)
        self._make_room()
        return key

    def _stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _make_room(self) -> None:
        dropped_keys = [key for key, path in self.paths.items() if path.is_relative_to(self.folder)]
        for key in dropped_keys[:-MOST_FILES]:
            shutil.rmtree(self.folder / key, ignore_errors=True)
            del self.paths[key]

    def close(self) -> None:
        """Remove what was dropped."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _too_much(name: str, room: int) -> InputError:
    todo = "open it by name: `ridgeline open FILE` reads it where it is"
    given_text, expectation = f"more than {room:,} bytes", f"at most {MOST_BYTES:,} a file, {ALL_BYTES:,} together"
    return InputError(Problem(path=safe_name(name), given=given_text, expected=expectation, todo=todo))
