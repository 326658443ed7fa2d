"""Take the photograph of the trace report again: a generated trace, the real command, a real headless Chromium."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.pages import ROOT

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "real")]

from browser import browser  # noqa: E402
from page_traces import ranks  # noqa: E402

TARGET = ROOT / "docs" / "images" / "trace-report.png"
SIZE = {"width": 1400, "height": 1510, "deviceScaleFactor": 1, "mobile": False}
VIEW = """
const stage = ridgeline.stage, {data} = stage;
stage.go(1.135e8, 1.315e8, false);
const track = stage.tracks.find(one => one.working && one.stream === 'stream 20');
stage.select([...track.lanes[0]].findLast(place => data.start[place] < 1.14e8));
"""


def run(arguments: argparse.Namespace) -> int:
    """Write docs/images/trace-report.png."""
    if arguments.check:
        print("a picture is not checked")
        return 0
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as page:
        report = Path(folder) / "report.html"
        ranks(Path(folder) / "traces", 9000, world=3)
        command = [sys.executable, "-m", "ridgeline.cli.main", "analyze", "traces", "--html", report.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        page.ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": SIZE})
        page.go(report.as_uri())
        page.wait("return !!window.ridgeline")
        page.run(VIEW)
        page.wait("return !ridgeline.stage.asked")
        TARGET.parent.mkdir(exist_ok=True)
        page.photograph(TARGET)
        print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes")
    return 0
