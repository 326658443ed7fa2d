"""Take the photographs of the workbench again: the real server, its example, a real headless Chromium."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ridgeline.web import serve_workbench
from tools.pages import ROOT

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "real")]

from browser import Browser, browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 300_000
PHOTOGRAPHS = (
    ("workbench", "/predict?x_scaleup=1.5", 1400, 980, ""),
    ("workbench-sense", "/sense?kind=decode&chips=8&pp=1&batch=64&seq=4096&curve=chip.hbm.bandwidth", 1400, 1000, ""),
)
"""Name, state, size, and what is done before the shutter."""


def run(arguments: argparse.Namespace) -> int:
    """Write docs/images/workbench*.png."""
    if arguments.check:
        print("pictures are not checked")
        return 0
    with tempfile.TemporaryDirectory() as folder, serve_workbench() as (opened, _), browser(Path(folder)) as page:
        page.go(opened.url)
        base = opened.url.partition("/?")[0]
        for name, path, width, height, script in PHOTOGRAPHS:
            target = IMAGES / f"{name}.png"
            _photograph(page, base + path, (width, height), script, target)
            size = target.stat().st_size
            print(f"{target.relative_to(ROOT)}: {size:,} bytes")
            if size > MOST_BYTES:
                print(f"  more than {MOST_BYTES:,}")
                return 1
    return 0


def _photograph(page: Browser, url: str, size: tuple[int, int], script: str, target: Path) -> None:
    shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    page.ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": shape})
    page.go(url)
    page.wait("return document.body.dataset.drawn === location.href")
    if script:
        page.run(script)
    page.photograph(target)
