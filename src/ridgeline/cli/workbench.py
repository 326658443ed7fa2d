"""Turn `ridgeline open` into a workbench in the browser: served by this machine to this machine until Ctrl-C.

0  done; also after Ctrl-C        2  a file is not there, the port is taken, or the extra `web` is not installed
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ridgeline
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import print_json

if TYPE_CHECKING:
    from ridgeline.web import OpenWorkbench


def open(
    files: list[Path] | None = None, port: int = 0, allow_launch: bool = False, seconds: float | None = None,
    no_browser: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Open the workbench in a browser: predict with sliders, plan, compare, analyse files; for this machine alone.

    The address has a token of this start; without it nothing is answered. Nothing is fetched from anywhere.
    """

    def ready(opened: OpenWorkbench) -> None:
        if json:
            print_json(opened)
        else:
            say(f"{opened.url} shows the workbench on this machine; Ctrl-C ends")
        sys.stdout.flush()
        if not (no_browser or json) and _has_screen():
            import webbrowser

            webbrowser.open(opened.url)

    try:
        ridgeline.open(*(files or ()), port=port, allow_launch=allow_launch, seconds=seconds, ready=ready)
    except KeyboardInterrupt:
        say("", err=True)


def _has_screen() -> bool:
    """Whether a browser would have a window of its own, and not take over the terminal."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or bool(display)
