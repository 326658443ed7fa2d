"""Save and load a run with torch.distributed.checkpoint: asynchronously, atomically, on any mesh.

Weights, master copies and the optimizer's moments are stored under the names of the model's parameters as DTensors, so
that a run resumes with other degrees, stages or sharding. What is written is copied first: the run goes on meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ridgeline.runtime.train.assemble import Assembly
from ridgeline.runtime.train.checkpoint_files import forget_parts, newest_sound, part, publish
from ridgeline.runtime.train.update import MOMENTS, Update


class Checkpoints:
    """The checkpoints of one run; at most one is being written at a time."""

    def __init__(self, folder: Path, assembly: Assembly, update: Update) -> None:
        self.folder, self.assembly, self.update = folder / "checkpoints", assembly, update
        self.pending: tuple[int, Any] | None = None
        self.last = ""
        many = assembly.layout.ranks > 1
        self.group = dist.new_group(backend="gloo") if many else None  # beside the run's own collectives
        if assembly.layout.rank == 0:
            forget_parts(self.folder)
        if many:
            dist.barrier(self.group)

    def save(self, step: int, facts: dict[str, Any]) -> None:
        """Begin to write the state behind a step; the one before it is finished first."""
        from torch.distributed.checkpoint import FileSystemWriter, async_save

        self.finish()
        self.facts = facts
        writer = FileSystemWriter(part(self.folder, step))
        told: dict[str, Any] = {"process_group": self.group} if self.group else {"no_dist": True}
        state = {name: value.clone() for name, value in self._state().items()}
        self.pending = step, async_save(state, storage_writer=writer, **told)

    def look(self) -> None:
        """Make count what has been written meanwhile; costs nothing where it has not."""
        if self.pending is not None and self.pending[1].done():
            self.finish()

    def finish(self) -> None:
        """Wait for what is being written and make it count. Rank 0 ends last: it writes the list of all files."""
        if self.pending is None:
            return
        step, written = self.pending
        self.pending = None
        written.result()
        if self.assembly.layout.rank == 0:
            self.last = str(publish(self.folder, step, self.facts))

    def load(self) -> tuple[int, list[str]]:
        """Go on from the newest sound checkpoint: the step it was taken behind, and what was passed over."""
        from torch.distributed.checkpoint import FileSystemReader, load

        found: list[Any] = [newest_sound(self.folder) if self.assembly.layout.rank == 0 else None]
        if self.group is not None:
            dist.broadcast_object_list(found, group=self.group)
        if found[0] is None:
            return 0, []
        path, step, passed = found[0]
        state = self._state()
        told: dict[str, Any] = {"process_group": self.group} if self.group else {"no_dist": True}
        load(state, storage_reader=FileSystemReader(path), **told)
        self._restore(step)
        return step, passed

    def _state(self) -> dict[str, Tensor]:
        """Every tensor of the run by the name it is stored under, sharing memory with the run."""
        found: dict[str, Tensor] = {}
        tied, both = self.assembly.blueprint.model.embedding.tied, "embedding.weight" in self.update.named
        for name, parameter in self.update.named.items():
            end = tied and name == "head.weight"
            if end and both:  # the one matrix of a tied embedding is stored once
                continue
            stored = "embedding.weight" if end else name
            found[f"weight.{stored}"] = parameter.detach()
            master = self.update.masters[name]
            if master is not self.update.shards[name]:
                found[f"master.{stored}"] = _as(parameter, master)
            for moment in MOMENTS:
                found[f"{moment}.{stored}"] = _as(parameter, self.update.moment(name, moment))
        return found

    def _restore(self, step: int) -> None:
        """The optimizer's own count of steps; and one matrix for both ends of a tied embedding on this rank."""
        self.update.set_steps(step)
        named = self.update.named
        if self.assembly.blueprint.model.embedding.tied and {"embedding.weight", "head.weight"} <= set(named):
            self.update.copy_state("head.weight", "embedding.weight")


def _as(parameter: Any, local: Tensor) -> Tensor:
    """A shard beside a parameter's, placed as the parameter is."""
    if not hasattr(parameter, "placements"):
        return local
    from torch.distributed.tensor import DTensor

    told = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    return DTensor.from_local(local, parameter.device_mesh, parameter.placements, **told)
