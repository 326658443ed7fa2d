"""Write a line of JSON for every step of a run; a disk that is full costs lines, never the run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.core.files import refuse_unwritable
from ridgeline.runtime.train.request import Listener, StepRow

METRICS = "metrics.jsonl"


class Metrics:
    """The file of a run's steps, open while it lasts; as a context it gives the listener that writes it.

    A step that is trained again behind a checkpoint is written again: its last line counts.
    """

    def __init__(self, folder: Path, listener: Listener, *, append: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.listener = folder / METRICS, listener
        refuse_unwritable(self.path)
        self.stream = self.path.open("a" if append else "w", encoding="utf-8")
        self.failed = False

    def __enter__(self) -> Listener:
        return Listener(step=self._step, note=self.listener.note)

    def __exit__(self, *how: Any) -> None:
        try:
            self.stream.close()
        except OSError as wrong:
            self._complain(wrong)

    def _step(self, row: StepRow) -> None:
        try:
            self.stream.write(json.dumps(asdict(row)) + "\n")
            self.stream.flush()
            self.failed = False
        except OSError as wrong:
            self._complain(wrong)
        self.listener.step(row)

    def _complain(self, wrong: OSError) -> None:
        """Once, until a line goes through again."""
        if not self.failed:
            self.listener.note(f"{self.path}: {wrong.strerror}; steps are not written")
        self.failed = True
