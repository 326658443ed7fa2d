"""Saved activations in host memory: copied out beside the layers that follow, fetched before the backward needs them.

    forward    what a layer saves is copied to pinned memory on a stream of its own; the chip's copy is freed with that
    backward   when the first tensor of layer i is asked for, all of layer i - 1 are fetched on another stream

A tensor that several ops saved is copied once. Weights stay where they are, and so does what the last layer of a stage
saved: its backward comes next. On a host without an accelerator the copies are plain copies, so that a comparison with
one process tests them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ridgeline.runtime.train.layout import shard_of

SMALLEST = 1 << 16  # bytes: what is smaller stays (scales, log-sum-exps of short sequences)


class _Away:
    """One saved tensor in host memory, and its copy on the chip once it is fetched."""

    __slots__ = ("arrived", "here", "host", "shelf")

    def __init__(self, host: Tensor, shelf: _Shelf) -> None:
        self.host, self.shelf = host, shelf
        self.here: Tensor = None
        self.arrived: torch.Event | None = None


class _Shelf:
    """What one layer saved in one forward pass, and the shelf of the layer before it."""

    def __init__(self, before: _Shelf | None) -> None:
        self.before = before
        self.away: list[_Away] = []
        self.fetched = False


class ActivationOffload:
    """Copies of a share of what layers save, on the streams of one device."""

    def __init__(self, device: str, share: float) -> None:
        self.device, self.share = torch.device(device), share
        module = None if self.device.type == "cpu" else getattr(torch, self.device.type)
        self.module = module
        self.out: torch.Stream = module.Stream() if module else None
        self.back: torch.Stream = module.Stream() if module else None
        self.seen = self.moved = 0  # bytes

    @contextmanager
    def saving(self, layer: nn.Module, before: _Shelf | None) -> Iterator[_Shelf]:
        """Forward of one layer, whose saved tensors are dealt with here."""
        shelf = _Shelf(before)
        packed_tensors: dict[
            tuple[object, ...], tuple[Tensor, _Away]
        ] = {}  # holds them, so that no address is used twice
        weights, least = set[int](), SMALLEST if self.module else 1

        def pack(saved: Tensor) -> Tensor | _Away:
            if not weights:  # in the forward of the layer, where sharded weights are whole
                weights.update(_storage(parameter) for parameter in layer.parameters())
            size = saved.numel() * saved.element_size()
            if saved.device.type != self.device.type or size < least or _storage(saved) in weights:
                return saved
            key = (saved.data_ptr(), saved.dtype, saved.shape, saved.stride(), saved._version)
            if key in packed_tensors:
                return packed_tensors[key][1]
            self.seen += size
            if self.moved + size > self.share * self.seen:
                return saved
            self.moved += size
            host_copy = _Away(self._sent(saved.detach()), shelf)
            shelf.away.append(host_copy)
            packed_tensors[key] = saved, host_copy
            return host_copy

        with saved_tensors_hooks(pack, self._fetch_saved):
            yield shelf
        packed_tensors.clear()

    def _sent(self, saved: Tensor) -> Tensor:
        if self.module is None:
            return saved.clone()
        host = torch.empty_like(saved, device="cpu", pin_memory=True)
        self.out.wait_stream(self.module.current_stream())
        with self.module.stream(self.out):
            host.copy_(saved, non_blocking=True)
        saved.record_stream(self.out)
        return host

    def _fetch_saved(self, saved: Tensor | _Away) -> Tensor:
        if not isinstance(saved, _Away):
            return saved
        self._fetch(saved.shelf)
        if saved.shelf.before is not None:
            self._fetch(saved.shelf.before)
        if self.module is not None:
            now = self.module.current_stream()
            now.wait_event(saved.arrived)
            saved.here.record_stream(now)
        return saved.here

    def _fetch(self, shelf: _Shelf) -> None:
        """Begin to copy a shelf back, where that has not begun."""
        if shelf.fetched:
            return
        shelf.fetched = True
        for host_copy in shelf.away:
            if self.module is None:
                host_copy.here = host_copy.host.clone()
                continue
            self.back.wait_stream(self.out)
            with self.module.stream(self.back):
                host_copy.here = host_copy.host.to(self.device, non_blocking=True)
                host_copy.arrived = self.back.record_event()
        shelf.away.clear()  # the graph holds them as long as they are needed


def _storage(tensor: Tensor) -> int:
    return int(shard_of(tensor).untyped_storage().data_ptr())
