"""Drive a real, headless Chromium through chromedriver, for tests that must see what a person would see."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from page import Page, free_port

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1600,1000",
)  # fmt: skip
BINARY = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (BINARY and DRIVER), reason="no Chromium with chromedriver here: apt-get install chromium chromium-driver"
)
_open = build_opener(ProxyHandler({})).open


class Browser(Page):
    """One page in one session."""

    def __init__(self, base: str) -> None:
        self.base = base

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """One command of the WebDriver protocol."""
        data = None if body is None else json.dumps(body).encode()
        with _open(Request(self.base + path, data, {"Content-Type": "application/json"}), timeout=60) as answer:
            return json.load(answer)["value"]

    def go(self, url: str) -> None:
        """Load a page."""
        self.ask("/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value of a script's return statement."""
        return self.ask("/execute/sync", {"script": script, "args": []})

    def complaints(self) -> list[str]:
        """What the console says that is worse than a remark."""
        log = self.ask("/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def photograph(self, target: Path) -> None:
        """A PNG of what is on screen."""
        target.write_bytes(base64.b64decode(self.ask("/screenshot")))


@contextmanager
def browser(folder: Path, *more: str) -> Iterator[Browser]:
    """A fresh Chromium whose profile lies in a folder of its own."""
    port = free_port()
    with (folder / "chromedriver.log").open("wb") as log:
        driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=log, stderr=log)
        root = Browser(f"http://127.0.0.1:{port}")
        try:
            _await(root)
            options = {"binary": BINARY, "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}", *more]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = root.ask("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            page = Browser(f"{root.base}/session/{session}")
            try:
                yield page
            finally:
                _open(Request(page.base, method="DELETE"), timeout=30).close()
        finally:
            driver.terminate()
            driver.wait(timeout=30)


def _await(root: Browser) -> None:
    for _ in range(100):
        try:
            if root.ask("/status")["ready"]:
                return
        except (URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError("chromedriver does not answer")
