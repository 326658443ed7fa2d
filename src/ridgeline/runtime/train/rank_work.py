"""What one rank does, in whatever process it was started; and an error of it in a line."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.train.request import Listener, Request


def work(request: Request, world: World, listener: Listener, stop: Callable[[], bool], began: float) -> Any:
    """Train or verify as this rank: its RunOutcome, or a Verification at rank 0.

    stop    asked behind every step: whether all ranks should end in order
    began   when the run was asked for, on the monotonic clock
    """
    import torch

    from ridgeline.runtime.train.loop import compare, train

    if request.options.device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # a chip of the system `cpu` is one core
    if request.options.verify:
        return compare(request, world)
    return train(request, world, listener, stop, began)


def reason(wrong: BaseException) -> str:
    """The error in a line, with the operation it happened in."""
    frames = traceback.extract_tb(wrong.__traceback__)
    ours = [frame for frame in frames if "ridgeline" in frame.filename]
    where = f" in {ours[-1].name} ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    below = f", {frames[-1].name}" if frames and "ridgeline" not in frames[-1].filename else ""
    first = (str(wrong).strip().splitlines() or [""])[0][:300]
    return f"{type(wrong).__name__}: {first}{where}{below}"
