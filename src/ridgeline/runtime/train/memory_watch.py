"""Bytes that a rank's tensors take at the worst moment of a step, by kind: what a prediction of peak memory is held to.

    weights        the rank's shards, and whole weights that stay gathered through a step
    gradients      of its parameters, as they are held
    optimizer      states and master copies
    activations    what the forward made and is still there
    temporary      what the backward and the update made, and weights that zero3 gathers for a layer

Every op's outputs are counted as long as their memory lives. That takes time, so that one step is counted, the first,
which no median includes. On an accelerator its allocator knows the peak: activations and temporary are what it has
beside the rest, and stand under activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ridgeline.core.documents import JsonMapping
from ridgeline.runtime.train.assemble import Assembly, gathered_weights
from ridgeline.runtime.train.layout import shard_of
from ridgeline.runtime.train.update import Update

KINDS = ("weights", "gradients", "optimizer", "activations", "temporary")
NEXT = 1.002  # a peak this much above the last one is looked at by kind


class _Live(TorchDispatchMode):  # type: ignore[misc]
    """Storages as ops make them, and the largest sum there was."""

    def __init__(self, assembly: Assembly, update: Update) -> None:
        super().__init__()
        self.assembly, self.update = assembly, update
        self.live = WeakIdKeyDictionary()
        self.peak, self.by_kind = 0, dict.fromkeys(KINDS, 0)
        for state in (*update.shards.values(), *_states(update)):
            self.live[shard_of(state).untyped_storage()] = "temporary"
        self._look()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: JsonMapping | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        fresh = False
        phase = "temporary" if torch._C._current_autograd_node() is not None else "activations"
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and type(leaf) is Tensor:
                storage = leaf.untyped_storage()
                if storage not in self.live:
                    self.live[storage] = phase
                    fresh = True
        if fresh:
            self._look()
        return out

    def _look(self) -> None:
        sizes = [(storage, storage.nbytes(), phase) for storage, phase in self.live.items()]
        total = sum(size for _, size, _ in sizes)
        if total > self.peak * NEXT:
            kinds = self._known_kinds()
            self.peak, self.by_kind = total, dict.fromkeys(KINDS, 0)
            for storage, size, phase in sizes:
                self.by_kind[kinds.get(storage._cdata, phase)] += size

    def _known_kinds(self) -> dict[int, str]:
        """Storages that have an owner, by kind; a weight that is its own master is a weight."""
        kinds: dict[int, str] = {}
        weight_kind = "temporary" if self.assembly.blueprint.plan.sharding.shard == "zero3" else "weights"
        for stage in self.assembly.stages.values():
            kinds |= {_key(weight): weight_kind for weight in gathered_weights(stage)}
        kinds |= {_key(state): "optimizer" for state in _states(self.update)}
        for name, parameter in self.update.named.items():
            kinds[_key(self.update.shards[name])] = "weights"
            if parameter.grad is not None:
                kinds[_key(parameter.grad)] = "gradients"
        return kinds


def _states(update: Update) -> Iterator[Tensor]:
    yield from update.masters.values()
    for pair in update.states.values():
        yield from pair


def _key(tensor: Tensor) -> int:
    return int(shard_of(tensor).untyped_storage()._cdata)


@contextmanager
def count_resident(assembly: Assembly, update: Update, *, wanted: bool) -> Iterator[dict[str, int]]:
    """Fill a table with bytes by kind when the block ends; empty where nobody wants them."""
    bytes_by_kind: dict[str, int] = {}
    if not wanted:
        yield bytes_by_kind
    elif assembly.layout.device.startswith("cpu"):
        with _Live(assembly, update) as live:
            yield bytes_by_kind
        bytes_by_kind |= live.by_kind
    else:
        module = getattr(torch, assembly.layout.device.partition(":")[0])
        grads = {name: shard_of(shard).nbytes for name, shard in update.shards.items()}
        yield bytes_by_kind
        bytes_by_kind |= {"weights": sum(grads.values()), "gradients": sum(grads.values())}
        shard_keys = {_key(shard) for shard in update.shards.values()}
        bytes_by_kind["optimizer"] = sum(state.nbytes for state in _states(update) if _key(state) not in shard_keys)
        bytes_by_kind["activations"] = max(0, int(module.max_memory_allocated()) - sum(bytes_by_kind.values()))
