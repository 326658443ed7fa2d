"""Tell TensorBoard of every step: scalars in an event file, written with TensorBoard's own writer and without torch."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from ridgeline.core.errors import Problem
from ridgeline.runtime.train.request import Listener, StepRow

FOLDER = "tensorboard"
SCALARS = ("loss", "gradient_norm", "loss_scale", "seconds", "tokens_per_s", "memory")


def absent() -> Problem | None:
    """What to install where TensorBoard is not."""
    if importlib.util.find_spec("tensorboard") is not None:
        return None
    todo = "`pip install ridgeline[tensorboard]`"
    return Problem(path="--tensorboard", given="no module tensorboard", expected="TensorBoard", todo=todo)


class EventFile:
    """The scalars `train/...` of a run in FOLDER/tensorboard; as a context it gives the listener that writes them."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.listener, self.writer = listener, EventFileWriter(str(folder / FOLDER))

    def __enter__(self) -> Listener:
        return Listener(step=self._step, note=self.listener.note)

    def __exit__(self, *how: Any) -> None:
        self.writer.close()

    def _step(self, row: StepRow) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=f"train/{name}", simple_value=getattr(row, name)) for name in SCALARS]
        self.writer.add_event(Event(wall_time=time.time(), step=row.step, summary=Summary(value=values)))
        self.listener.step(row)
