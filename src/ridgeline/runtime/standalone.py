"""Write the measuring part as one file that a bare accelerator image runs: a zipapp of `ridgeline.runtime.probe`."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from ridgeline.runtime.probe.profile_file import replace_file
from ridgeline.version import __version__

PACKAGE = Path(__file__).parent / "probe"
START = "import sys\n\nfrom ridgeline.runtime.probe.__main__ import main\n\nsys.exit(main())\n"
SHEBANG = b"#!/usr/bin/env python3\n"
FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of zip files: the same sources give the same bytes


def standalone() -> bytes:
    """The zipapp: needs Python 3.10, torch and numpy, and nothing of Ridgeline."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in _members():
            entry = zipfile.ZipInfo(name, FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, text)
    return SHEBANG + held.getvalue()


def write_standalone(path: Path) -> int:
    """Write it; how many bytes it has."""
    content = standalone()
    replace_file(path, content)
    return len(content)


def _members() -> list[tuple[str, str]]:
    """Names and texts of what the file holds; the packages above the probe are empty ones."""
    own = sorted(path for path in PACKAGE.iterdir() if path.suffix in (".py", ".json"))
    stub = f'"""The measuring part of Ridgeline {__version__}."""\n'
    found = [("__main__.py", START), ("ridgeline/__init__.py", stub), ("ridgeline/runtime/__init__.py", stub)]
    return [*found, *((f"ridgeline/runtime/probe/{path.name}", path.read_text(encoding="utf-8")) for path in own)]
