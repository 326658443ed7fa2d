"""AdamW on this rank's shards: weights, master copies and moments in the formats that the optimizer names.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2        g = gradient x factor that clips it
    w <- w (1 - rate decay) - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)

All of it is worked out in 32 bits. Where the engine fuses the optimizer a tensor is one kernel: Ridgeline's own on a
chip with Triton, which also widens, clips and writes the stored weight; torch's fused AdamW where formats are alike.

States in host memory (optimizer offload) are fetched piece by piece into three slots on the chip, updated there, and
written back, on streams of their own: while one piece is updated the next arrives and the one before it leaves.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.plan.optimizer import Optimizer
from ridgeline.runtime.train.assemble import TORCH_DTYPES, Assembly
from ridgeline.runtime.train.fused import has_kernels
from ridgeline.runtime.train.layout import shard_of

MOMENTS = ("exp_avg", "exp_avg_sq")
BETAS, EPSILON, DECAY, LARGEST_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
PIECE = 1 << 25  # elements of states that are fetched at a time
SLOTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterState:
    """What is kept of a parameter, or of a piece of one: stored weight, what is updated, both moments, its decay."""

    weight: Tensor
    master: Tensor
    states: tuple[Tensor, Tensor]
    decay: float


class Update:
    """The states of every parameter that this rank holds, and the step that moves them.

    masters    what is updated: the stored weight itself where the optimizer keeps no wider copy
    count      steps so far, on the chip, so that a captured graph counts too
    """

    def __init__(self, assembly: Assembly, optimizer: Optimizer, rate: float) -> None:
        plan = assembly.blueprint.plan
        self.named = assembly.parameters()
        self.shards = {name: shard_of(parameter.detach()) for name, parameter in self.named.items()}
        self.away = _offloaded_names(self.shards, plan.offload.optimizer)
        device, kind = torch.device(assembly.layout.device), TORCH_DTYPES[optimizer.states.id]
        self.masters = {}
        self.states: dict[str, tuple[Tensor, Tensor]] = {}
        for name, shard in self.shards.items():
            wide = TORCH_DTYPES[optimizer.master.id] if optimizer.master else shard.dtype
            needs_master = wide != shard.dtype
            place = partial(_empty_on_host, pinned=device.type != "cpu") if name in self.away else torch.empty_like
            self.masters[name] = place(shard, dtype=wide).copy_(shard) if needs_master else shard
            first, second = (place(shard, dtype=kind).zero_() for _ in MOMENTS)
            self.states[name] = first, second
        self.rate, self.fused = rate, "optimizer" in assembly.blueprint.fuses
        self.count = torch.zeros((), dtype=torch.float32, device=device)
        self.slots = _Slots(device, self) if self.away else None

    def forget(self) -> None:
        """Move nothing: the gradients are gone."""
        for parameter in self.named.values():
            parameter.grad = None

    def step(self, norm: Tensor, scale: float = 1.0) -> None:
        """Clip to the largest norm, update, and forget the gradients, which are `scale` times too large."""
        factor = (LARGEST_NORM / (norm.float() + 1e-6)).clamp(max=1.0) / scale
        self.count += 1
        for name, parameter in self.named.items():
            gradient = parameter.grad
            if gradient is not None and name not in self.away:
                self.apply(self.state_of(name), shard_of(gradient).contiguous(), factor)
                parameter.grad = None
        if self.slots is not None:
            for name in self.away:
                gradient = self.named[name].grad
                if gradient is not None:
                    self.slots.move(name, shard_of(gradient).contiguous(), factor)
                self.named[name].grad = None
            self.slots.finish()

    def apply(self, state: ParameterState, gradient: Tensor, factor: Tensor) -> None:
        weight, master, states = state.weight, state.master, state.states
        adam_options = {"rate": self.rate, "decay": state.decay, "betas": BETAS, "epsilon": EPSILON}
        if self.fused and has_kernels(weight):
            from ridgeline.runtime.train import kernels

            kernels.adamw(weight, master, gradient, states, (factor, self.count), adam_options)
            return
        if self.fused and gradient.dtype == master.dtype == states[0].dtype:
            scaled = gradient * factor.to(gradient.dtype)
            lists: tuple[list[Tensor], ...] = ([master], [scaled], [states[0]], [states[1]], [], [self.count])
            torch._fused_adamw_(
                *lists, lr=self.rate, beta1=BETAS[0], beta2=BETAS[1], weight_decay=adam_options["decay"], eps=EPSILON,
                amsgrad=False, maximize=False,
            )  # fmt: skip
        else:
            _loose(master, gradient.float() * factor, states, self.count, adam_options)
        if master is not weight:
            weight.copy_(master)

    def state_of(self, name: str) -> ParameterState:
        """All that is kept of a parameter; only matrices decay."""
        weight = self.shards[name]
        decay = DECAY if weight.dim() > 1 else 0.0
        return ParameterState(weight=weight, master=self.masters[name], states=self.states[name], decay=decay)

    def refresh_masters(self) -> None:
        for name, master in self.masters.items():
            if master is not self.shards[name]:
                master.copy_(self.shards[name])

    def moment(self, name: str, which: str) -> Tensor:
        return self.states[name][MOMENTS.index(which)]

    def set_steps(self, steps: int) -> None:
        self.count.fill_(steps)

    def copy_state(self, to: str, source: str) -> None:
        """Weight, master and moments of one parameter as another's."""
        self.shards[to].copy_(self.shards[source])
        self.masters[to].copy_(self.masters[source])
        for which in MOMENTS:
            self.moment(to, which).copy_(self.moment(source, which))


def _loose(master: Tensor, gradient: Tensor, states: tuple[Tensor, Tensor], count: Tensor, options: JsonObject) -> None:
    (beta1, beta2), rate = options["betas"], options["rate"]
    first = states[0].float().lerp_(gradient, 1 - beta1)
    second = states[1].float().lerp_(gradient.square(), 1 - beta2)
    states[0].copy_(first)
    states[1].copy_(second)
    root = (second / (1 - beta2**count)).sqrt_().add_(options["epsilon"])
    new_master = master.float() * (1 - rate * options["decay"])
    master.copy_(new_master - rate * (first / (1 - beta1**count)) / root)


def _offloaded_names(shards: dict[str, Tensor], share: float) -> tuple[str, ...]:
    """Parameters whose states live on the host: the last ones in the model, as many as make up the share."""
    wanted_elements, chosen = share * sum(shard.numel() for shard in shards.values()), []
    for name, shard in reversed(shards.items()):
        if wanted_elements <= 0:
            break
        chosen.append(name)
        wanted_elements -= shard.numel()
    return tuple(chosen)


def _empty_on_host(like: Tensor, *, dtype: torch.dtype, pinned: bool) -> Tensor:
    return torch.empty(like.shape, dtype=dtype, device="cpu", pin_memory=pinned)


class _Slots:
    """Room on the chip for the states of three pieces, and the streams that fill and empty it."""

    def __init__(self, device: torch.device, update: Update) -> None:
        self.update = update
        self.module: Any = None if device.type == "cpu" else getattr(torch, device.type)
        size = min(PIECE, max(update.shards[name].numel() for name in update.away))
        name = update.away[0]
        kinds = [update.states[name][0].dtype] * 2
        if update.masters[name] is not update.shards[name]:
            kinds.append(update.masters[name].dtype)
        self.rooms = [[torch.empty(size, dtype=kind, device=device) for kind in kinds] for _ in range(SLOTS)]
        self.free: list[torch.Event | None] = [None] * SLOTS
        self.streams = (self.module.Stream(), self.module.Stream()) if self.module else None
        self.turn = 0

    def move(self, name: str, gradient: Tensor, factor: Tensor) -> None:
        """Fetch, update and write back the states of one parameter, piece by piece."""
        update = self.update
        state = update.state_of(name)
        hosts = [state.view(-1) for state in state.states]
        if state.master is not state.weight:
            hosts.append(state.master.view(-1))
        size, most = state.weight.numel(), len(self.rooms[0][0])
        for piece in (slice(first, min(first + most, size)) for first in range(0, size, most)):
            room = [buffer[: piece.stop - piece.start] for buffer in self.rooms[self.turn]]
            self._fill_room(room, [host[piece] for host in hosts])
            part = state.weight.view(-1)[piece]
            wide = room[2] if len(room) == 3 else part
            here = ParameterState(weight=part, master=wide, states=(room[0], room[1]), decay=state.decay)
            update.apply(here, gradient.view(-1)[piece], factor)
            self._empty_room(room, [host[piece] for host in hosts])
            self.turn = (self.turn + 1) % SLOTS

    def _fill_room(self, room: list[Tensor], hosts: list[Tensor]) -> None:
        stream = self.streams[0] if self.streams else None
        if stream is not None and self.free[self.turn] is not None:
            stream.wait_event(self.free[self.turn])
        self._copy(room, hosts, stream)
        if stream is not None:
            self.module.current_stream().wait_stream(stream)

    def _empty_room(self, room: list[Tensor], hosts: list[Tensor]) -> None:
        stream = self.streams[1] if self.streams else None
        if stream is not None:
            stream.wait_stream(self.module.current_stream())
        self._copy(hosts, room, stream)
        if stream is not None:
            self.free[self.turn] = stream.record_event()

    def _copy(self, targets: list[Tensor], sources: list[Tensor], stream: torch.Stream | None) -> None:
        with self.module.stream(stream) if stream is not None else nullcontext():
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=stream is not None)

    def finish(self) -> None:
        """States are whole in host memory before anybody reads them."""
        if self.streams is not None:
            self.module.current_stream().wait_stream(self.streams[1])
