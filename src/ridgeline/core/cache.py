"""Where what was built on this machine is kept: RIDGELINE_CACHE, or `ridgeline` in the user's cache directory."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The directory; whoever writes there makes it, for the user alone."""
    chosen_folder = os.environ.get("RIDGELINE_CACHE", "")
    if chosen_folder:
        return Path(chosen_folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"
