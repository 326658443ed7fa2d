"""Make tiny Kineto traces event by event, for answers that fit on the back of an envelope."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.trace.classes import classify
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Timeline


@dataclass(kw_only=True)
class Sketch:
    """Calls and kernels of one rank, in microseconds from 1,000,000."""

    rank: int = 0
    world: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cat: str, name: str, place: tuple[int, int], start: float, length: float, **args: Any) -> Sketch:
        pid, tid = place
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": 1_000_000 + start, "dur": length}
        self.events.append(event | ({"args": args} if args else {}))
        return self

    def call(self, name: str, start: float, length: float, link: int = 0, thread: int = 900) -> Sketch:
        return self.add("cuda_runtime", name, (900, thread), start, length, **({"correlation": link} if link else {}))

    def kernel(self, name: str, start: float, length: float, link: int = 0, stream: int = 7, **more: Any) -> Sketch:
        args = {"device": self.rank, "stream": stream, "correlation": link} | more
        return self.add("kernel", name, (self.rank, stream), start, length, **args)

    def launched(self, name: str, call: float, start: float, length: float, stream: int = 7, **more: Any) -> Sketch:
        """A launch of 2 us and its kernel."""
        link = len(self.events) + 1
        return self.call("cudaLaunchKernel", call, 2, link).kernel(name, start, length, link, stream, **more)

    def arrow(self, cat: str, id: int | str, begin: tuple[int, int, float], end: tuple[int, int, float]) -> Sketch:
        """A flow arrow from one thread and instant to another: process, thread, microseconds."""
        for ph, (pid, tid, at) in (("s", begin), ("f", end)):
            self.events.append(
                {"ph": ph, "id": id, "pid": pid, "tid": tid, "ts": 1_000_000 + at, "cat": cat, "name": cat}
            )
        return self

    def memory(self, at: float, total: int) -> Sketch:
        self.events.append(
            {
                "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 900, "tid": 900,
                "ts": 1_000_000 + at,
                "args": {"Device Type": 1, "Device Id": self.rank, "Total Allocated": total, "Total Reserved": total},
            }
        )  # fmt: skip
        return self

    def write(self, folder: Path) -> Path:
        labels = [
            {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}}
            for pid, label in ((900, "CPU"), (self.rank, f"GPU {self.rank}"))
        ]
        told = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps({"distributedInfo": told, "traceEvents": [*self.events, *labels]}), encoding="utf-8")
        return path

    def read(self, folder: Path) -> Timeline:
        return classify(read_timeline(self.write(folder)))
