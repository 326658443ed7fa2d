"""Record a window of steps with torch's profiler: a trace for each rank, which `analyze` and `explain` read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.runtime.train.layout import Layout

QUIET, WARM, RECORDED = 1, 1, 2  # steps: before, with the profiler warming up, in the trace


class Tracer:
    """Follows the steps of a run; does nothing where no folder is named."""

    def __init__(self, folder: str, layout: Layout) -> None:
        self.profiler: Any = None
        if not folder:
            return
        from torch.profiler import ProfilerActivity, profile, schedule

        path = Path(folder) / f"rank-{layout.rank:05d}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        activities = [ProfilerActivity.CPU]
        if layout.device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        self.profiler = profile(
            activities=activities,
            schedule=schedule(wait=QUIET, warmup=WARM, active=RECORDED, repeat=1),
            on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
            record_shapes=True,
        )
        self.profiler.start()

    def step(self) -> None:
        """A step has ended."""
        if self.profiler is not None:
            self.profiler.step()

    def end(self) -> None:
        """Write what there is."""
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None
