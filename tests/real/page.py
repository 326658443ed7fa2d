"""A page in a browser, whichever protocol drives it, and a port for the protocol."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from typing import Any


class Page(ABC):
    """What tests ask of a page."""

    @abstractmethod
    def run(self, script: str) -> Any:
        """The value of a script's return statement."""

    def wait(self, script: str, seconds: float = 60.0) -> Any:
        """The script's value once it is true; an error with the page's text if it never is."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.run(script):
                return value
            time.sleep(0.25)
        raise AssertionError(f"never came true: {script}\n{self.run('return document.body.innerText')[:2000]}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
