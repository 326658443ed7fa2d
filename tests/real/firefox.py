"""Drive a real, headless Firefox through Marionette, the remote protocol that is in it: no driver beside it is needed.

A message is its length, a colon and a list: [0, number, name, arguments] asks, [1, number, error, value] answers.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page import Page, free_port

BINARY = next((found for name in ("firefox-esr", "firefox") if (found := shutil.which(name))), None)
needs_firefox = pytest.mark.skipif(BINARY is None, reason="no Firefox here: apt-get install firefox-esr")
PREFERENCES = {
    "browser.shell.checkDefaultBrowser": False, "browser.startup.page": 0, "app.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False, "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False, "services.settings.server": "data:,",
    "browser.newtabpage.enabled": False,
    "browser.safebrowsing.downloads.remote.enabled": False, "extensions.update.enabled": False,
}  # fmt: skip
COMPLAINTS = """
return Services.console.getMessageArray()
  .filter(one => one instanceof Ci.nsIScriptError && one.sourceName.startsWith("file:"))
  .map(one => one.message);"""


class Firefox(Page):
    """One page in one session; the same words as `browser.Browser`."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.number, self.held = link, 0, b""
        self._message()  # who answers
        self.about = self.ask("WebDriver:NewSession", {})["capabilities"]

    def _message(self) -> Any:
        while b":" not in self.held:
            self._more()
        size, _, self.held = self.held.partition(b":")
        while len(self.held) < int(size):
            self._more()
        text, self.held = self.held[: int(size)], self.held[int(size) :]
        return json.loads(text)

    def _more(self) -> None:
        part = self.link.recv(1 << 16)
        if not part:
            raise AssertionError("Firefox has gone")
        self.held += part

    def ask(self, command: str, body: dict[str, Any] | None = None) -> Any:
        """One command of the protocol."""
        self.number += 1
        text = json.dumps([0, self.number, command, body or {}]).encode()
        self.link.sendall(b"%d:%b" % (len(text), text))
        _, _, wrong, value = self._message()
        if wrong:
            raise AssertionError(f"{command}: {wrong['error']}: {wrong['message']}")
        return value

    def go(self, url: str) -> None:
        """Load a page."""
        self.ask("WebDriver:Navigate", {"url": url})

    def enter_frame(self) -> None:
        """From now on the first frame of the page is the page."""
        self.ask("WebDriver:SwitchToFrame", {"id": 0})

    def run(self, script: str) -> Any:
        """The value of a script's return statement, in the page's own world."""
        return self.ask("WebDriver:ExecuteScript", {"script": script, "args": [], "sandbox": None})["value"]

    def complaints(self) -> list[str]:
        """Errors and warnings that scripts of a page in a file left on the console."""
        self.ask("Marionette:SetContext", {"value": "chrome"})
        try:
            return list(self.run(COMPLAINTS))
        finally:
            self.ask("Marionette:SetContext", {"value": "content"})

    def photograph(self, target: Path) -> None:
        """A PNG of what is on screen."""
        target.write_bytes(base64.b64decode(self.ask("WebDriver:TakeScreenshot", {"full": False})["value"]))


@contextmanager
def firefox(folder: Path) -> Iterator[Firefox]:
    """A fresh Firefox whose profile lies in a folder of its own."""
    port = free_port()
    profile = folder / "firefox"
    profile.mkdir()
    lines = [f"user_pref({json.dumps(key)}, {json.dumps(one)});" for key, one in PREFERENCES.items()]
    lines.append(f'user_pref("marionette.port", {port});')
    (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
    command = [str(BINARY), "--headless", "--marionette", "--remote-allow-system-access", "--no-remote",
               "--width", "1600", "--height", "1000", "--profile", str(profile)]  # fmt: skip
    with (folder / "firefox.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
        try:
            with _connected(port, process) as link:
                page = Firefox(link)
                page.ask("WebDriver:SetTimeouts", {"pageLoad": 60_000, "script": 60_000})
                yield page
        finally:
            process.terminate()
            process.wait(timeout=30)


def _connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=90)
        except ConnectionError:
            assert process.poll() is None, "Firefox ended"
            time.sleep(0.2)
    raise AssertionError("Firefox does not answer")
