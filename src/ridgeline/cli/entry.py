"""Start the command line: what runs before anything is imported, so that Ctrl-C is quiet from the first moment.

Installed as `ridgeline`. While modules load, an interrupt ends the process at once with code 130; the verbs take over.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

TORCH_VERBS = {"run", "capture", "graph", "bringup", "characterize", "preflight", "collective"}


def main() -> None:
    """Load the command line and run it."""
    gc.set_threshold(100_000)  # modules and tables are not garbage: looking through them costs a tenth of `predict`
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a job in the background ignores interrupts, and goes on doing so
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if not TORCH_VERBS & set(sys.argv[1:2]):  # columns are added, no matrix is multiplied: threads for it cost 40 ms
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ridgeline.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the interpreter's own end is left
