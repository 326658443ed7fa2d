"""Parameters as DTensors: where tensor and expert ranks cut them, what their gradients are, how they begin.

    column parallel   [out, in] cut along out        gradient complete
    row parallel      [out, in] cut along in         gradient complete
    replicated        on every tensor rank           gradient a summand (Partial) wherever ranks saw different tokens or
                                                     heads: inside a tensor-parallel region, and everywhere with
                                                     sequence parallelism

A weight begins as a function of its name and the seed, never of the mesh: every plan starts from the same model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from ridgeline.models import spec
from ridgeline.runtime.train.fused import scaled_linear
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.request import ForwardConstants

STANDARD_DEVIATION = 0.02  # of a matrix's first values, as GPT-2 and Llama begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """What a module needs to make its parameters, and how it is to compute.

    fuses      words of `ir.fusions.FUSIONS`: what is one kernel
    compiled   layers are compiled: what is fused is left to the compiler
    narrow     what shares a scale where products are in 8 bits; empty: products are as wide as the weights
    angles     rotary angles by width and tokens, which all layers share
    """

    layout: Layout
    constants: ForwardConstants
    dtype: torch.dtype
    fuses: frozenset[str] = frozenset({"norm"})
    compiled: bool = False
    narrow: Literal["", "tensor", "row"] = ""
    angles: dict[tuple[int, int, bool], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def calls_kernel(self, word: str) -> bool:
        """Whether a layer calls a kernel of its own for this."""
        return word in self.fuses and not self.compiled

    def weight(self, *shape: int, cut: int | None) -> nn.Parameter:
        """A parameter of the whole `shape`, cut along that dim over the tensor ranks."""
        return self._parameter(shape, self.layout.tensor, (cut,))

    def experts(self, *shape: int, cut: int) -> nn.Parameter:
        """A parameter with a row for each expert: rows over ep, and `cut` over etp."""
        return self._parameter(shape, self.layout.experts, (0, cut))

    def _parameter(self, shape: tuple[int, ...], mesh: DeviceMesh | None, cuts: tuple[int | None, ...]) -> nn.Parameter:
        if mesh is None:
            return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.layout.device))
        from torch.distributed.tensor import DTensor, Replicate, Shard

        local_shape = list(shape)
        for dim, degree in zip(cuts, mesh.shape, strict=True):
            if dim is not None:
                local_shape[dim] //= degree
        local = torch.empty(local_shape, dtype=self.dtype, device=self.layout.device)
        placements = [Replicate() if dim is None else Shard(dim) for dim in cuts]
        return nn.Parameter(DTensor.from_local(local, mesh, placements, run_check=False))


def local(parameter: nn.Parameter, *, partial: bool = False) -> Tensor:
    """What this rank multiplies with; the gradient of a replicated weight is a summand where `partial`."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    if not isinstance(parameter, DTensor):
        return parameter
    if partial and all(isinstance(place, Replicate) for place in parameter.placements):
        return parameter.to_local(grad_placements=[Partial()] * parameter.device_mesh.ndim)
    return parameter.to_local()


class Matrix(nn.Module):  # type: ignore[misc]
    """A linear layer; `cut` names the side that tensor ranks share. A row-parallel bias stands outside the region."""

    def __init__(
        self, make: Maker, out: int, into: int, cut: Literal["out", "in", "none"], bias: bool = False,
        *, inside: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = make.weight(out, into, cut={"out": 0, "in": 1, "none": None}[cut])
        self.bias = make.weight(out, cut=0 if cut == "out" else None) if bias else None
        self.row, self.narrow = cut == "in", make.narrow if inside else ""
        self.summand = (inside and not self.row) or make.layout.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """The product; a row-parallel bias waits for `after`."""
        bias = None if self.bias is None or self.row else local(self.bias, partial=self.summand)
        weight = local(self.weight, partial=self.summand)
        return scaled_linear(x, weight, bias, self.narrow) if self.narrow else functional.linear(x, weight, bias)

    def after(self, x: Tensor) -> Tensor:
        """A row-parallel product's bias, added once the ranks' summands are one."""
        return x if self.bias is None else x + local(self.bias, partial=self.summand)


class NormModule(nn.Module):  # type: ignore[misc]
    """RMS or layer norm over the last dim; `inside` a tensor-parallel region its gradient is always a summand."""

    def __init__(self, make: Maker, norm: spec.Norm, width: int, *, inside: bool = False) -> None:
        super().__init__()
        self.kind, self.width, self.epsilon = norm.kind, width, make.constants.epsilon
        self.offset = make.constants.numerics.norm_offset or 0.0
        self.summand = inside or make.layout.sequence_parallel
        self.one_kernel = make.compiled or "norm" in make.fuses
        self.weight = make.weight(width, cut=None) if norm.weight else None
        self.bias = make.weight(width, cut=None) if norm.bias else None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (
            None if parameter is None else local(parameter, partial=self.summand)
            for parameter in (self.weight, self.bias)
        )
        weight = weight + self.offset if weight is not None and self.offset else weight
        if not self.one_kernel:
            return _layer_norm(x, weight, bias, self.epsilon, centred=self.kind == "layer")
        if self.kind == "layer":
            return functional.layer_norm(x, (self.width,), weight, bias, self.epsilon)
        return functional.rms_norm(x, (self.width,), weight, self.epsilon)


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, *, centred: bool) -> Tensor:
    """A norm op by op, in 32 bits, as models write it that fuse nothing."""
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True) if centred else wide
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    wide = wide if weight is None else wide * weight.float()
    return (wide if bias is None else wide + bias.float()).to(x.dtype)


def begin(module: nn.Module, prefix: str, seed: int, norm_offset: float = 0.0) -> None:
    """Fill a module's parameters: norms that multiply by one, zeros in biases, normal elsewhere, each from its name."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.is_meta:  # a model that is only looked at
                value = first_value(prefix + name, parameter, seed)
                fill(parameter, value - norm_offset if is_norm_weight(name) else value)


def is_norm_weight(name: str) -> bool:
    return "norm" in name and name.endswith("weight")


def first_value(name: str, like: Tensor, seed: int) -> Tensor:
    """The whole tensor that a parameter of this name begins as."""
    if is_norm_weight(name):
        return torch.ones(like.shape, dtype=like.dtype, device=like.device)
    if name.endswith(("bias", "correction")):
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    generator = torch.Generator(device=like.device)
    generator.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big"))
    value = torch.randn(like.shape, generator=generator, dtype=torch.float32, device=like.device)
    return (value * STANDARD_DEVIATION).to(like.dtype)


def fill(parameter: Tensor, whole: Tensor) -> None:
    """Give a parameter its part of the whole tensor; no rank sends anything."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(whole)
