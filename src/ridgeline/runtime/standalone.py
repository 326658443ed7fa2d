"""Write the measuring part as one file that a bare accelerator image runs: a zipapp of `ridgeline.runtime.probe`."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from ridgeline.core.records import dataclass
from ridgeline.hardware.device_names import packed_names
from ridgeline.runtime.probe.profile_file import replace_file
from ridgeline.version import __version__

ROOT = Path(__file__).parents[1]
PARTS = (
    "core/records.py",
    "core/errors.py",
    "core/dtype.py",
    "ir/kernel.py",
    "hardware/device_names.py",
)  # what the probe imports beside itself
START = "import sys\n\nfrom ridgeline.runtime.probe.__main__ import main\n\nsys.exit(main())\n"
SHEBANG = b"#!/usr/bin/env python3\n"
FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of zip files: the same sources give the same bytes


def standalone() -> bytes:
    """The zipapp: needs Python 3.10, torch and numpy, and no Ridgeline that is installed."""
    archive_bytes = io.BytesIO()
    with zipfile.ZipFile(archive_bytes, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in _members():
            entry = zipfile.ZipInfo(name, FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, text)
    return SHEBANG + archive_bytes.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneFile:
    """The measuring part of Ridgeline as one file."""

    output: Path
    bytes: int

    JSON = "kind='standalone' *"


def write_standalone(path: Path) -> StandaloneFile:
    """Write the measuring part as one file."""
    content = standalone()
    replace_file(path, content)
    return StandaloneFile(output=path, bytes=len(content))


def _members() -> list[tuple[str, str]]:
    """Names and texts of what the file holds; the packages above its modules are empty ones."""
    probe = sorted(path for path in (ROOT / "runtime" / "probe").iterdir() if path.suffix == ".py")
    stub = f'"""The measuring part of Ridgeline {__version__}."""\n'
    packages = [(f"ridgeline/{name}__init__.py", stub) for name in ("", "core/", "hardware/", "ir/", "runtime/")]
    sources = [*(ROOT / part for part in PARTS), *probe]
    texts = [(f"ridgeline/{path.relative_to(ROOT).as_posix()}", path.read_text(encoding="utf-8")) for path in sources]
    return [("__main__.py", START), *packages, packed_names(Path("ridgeline/hardware")), *texts]
