"""A run of the tests says why some were skipped, once for each reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_reasons_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(7))\n"
        "def test_parts(n): pytest.skip('no accelerator')\n"
        "@pytest.mark.skipif(True, reason='no browser')\n"
        "def test_page(): pass\n",
        encoding="utf-8",
    )
    own = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), *sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "test_some.py"],
        cwd=tmp_path, env=own, capture_output=True, text=True,
    )  # fmt: skip
    assert "    7 skipped: no accelerator\n    1 skipped: no browser\n" in done.stdout
