"""Turn a plan's mesh into process groups and device meshes, say which tokens this rank holds, and exchange them.

Ranks are numbered as `plan.mesh.Mesh` says: tp varies fastest, then cp, dp, pp. The same ranks are seen three ways:

    pp x dp x cp x tp                        who shares a sequence, a matrix, a stage
    pp x replicate x shard x tp              replicate x shard = dp x cp: how state is sharded
    pp x replicate x shard x ep x etp        the same for experts, folded over tp x cp x dp

A `Layout` of one process has no meshes, and every collective of it is the identity. Collectives are differentiable
functions of plain tensors, each with the collective that its gradient takes:

    copy        x                       all-reduce          into a column-parallel product
    reduce      all-reduce              gradient as it is   out of a row-parallel product
    gather      all-gather along dim    reduce-scatter      the same two where the sequence is split over tp
    scatter     reduce-scatter          all-gather
    split       own part along dim      all-gather          replicated tokens dealt to tensor ranks
    merge       all-gather along dim    own part
    all_to_all  rows to their ranks     and back            experts, and heads for sequence
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ridgeline.core.documents import JsonObject
from ridgeline.plan.mesh import DP_LAST, Mesh
from ridgeline.plan.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """This rank along one axis: how many there are, which one it is, and the group to talk to (None: alone)."""

    degree: int = 1
    index: int = 0
    group: dist.ProcessGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where this rank stands.

    tensor          device mesh of the tensor ranks; None without tensor parallelism
    experts         device mesh of ep x etp, likewise
    sharded         device mesh replicate x shard of dense weights; None where nothing has replicas
    sharded_experts the same of experts
    even            experts get equal shares of the rows, whatever the router says: a dry run has no values
    """

    pp: Axis = Axis()
    dp: Axis = Axis()
    cp: Axis = Axis()
    tp: Axis = Axis()
    ep: Axis = Axis()
    etp: Axis = Axis()
    ranks: int = 1
    rank: int = 0
    device: str = "cpu"
    sequence_parallel: bool = False
    cp_kind: Literal["ring", "all-to-all"] = "ring"
    tensor: DeviceMesh | None = None
    experts: DeviceMesh | None = None
    sharded: DeviceMesh | None = None
    sharded_experts: DeviceMesh | None = None
    even: bool = False

    def positions(self, local: int) -> tuple[tuple[int, int], ...]:
        """Spans of the sequence that this context rank holds, when it holds `local` tokens.

        A ring cuts the sequence in 2 x cp parts and gives rank r the parts r and 2 cp - 1 - r, so that causal work is
        balanced; heads exchanged all-to-all need no such care.

        >>> Layout(cp=Axis(degree=2, index=1)).positions(8)
        ((4, 8), (8, 12))
        >>> Layout(cp=Axis(degree=2, index=1), cp_kind="all-to-all").positions(8)
        ((8, 16),)
        """
        r, cp = self.cp.index, self.cp.degree
        if cp == 1 or self.cp_kind == "all-to-all":
            return ((r * local, (r + 1) * local),)
        half = local // 2
        last = 2 * cp - 1 - r
        return ((r * half, (r + 1) * half), (last * half, (last + 1) * half))

    def places(self, tokens: int, device: torch.device) -> Tensor:
        """Places in the sequence of the tokens that this context rank holds."""
        return torch.cat([torch.arange(first, last, device=device) for first, last in self.positions(tokens)])

    def gather_objects(self, own: T) -> list[T]:
        """What every rank has, by rank."""
        objects = [own] * self.ranks
        if self.ranks > 1:
            dist.all_gather_object(objects, own)
        return objects


def shard_of(tensor: Tensor) -> Tensor:
    """This rank's piece of a DTensor, or the tensor itself; shares its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def full_of(tensor: Tensor) -> Tensor:
    """The whole of a DTensor, for which every rank asks, or the tensor itself."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def make_layout(plan: Plan, *, experts: bool, device: str = "cpu") -> Layout:
    """The layout of this process; the default process group must exist where the plan has more than one rank.

    experts   the model has some: where tensor ranks are not expert ranks they are replicas of experts
    """
    mesh = plan.mesh
    options: JsonObject = {"device": device, "cp_kind": plan.switches.cp_kind}
    options["sequence_parallel"] = plan.sequence_parallel and mesh.tp > 1
    if mesh.ranks == 1:
        return Layout(**options)
    shard = plan.shard_degree
    dense = _mesh(device, mesh, {"pp": mesh.pp, "dp": mesh.dp, "cp": mesh.cp, "tp": mesh.tp})
    sizes = {"pp": mesh.pp, "replicate": mesh.dp * mesh.cp // shard, "shard": shard, "tp": mesh.tp}
    state = _mesh(device, mesh, sizes)
    options |= {name: _axis(dense, name) for name in ("pp", "dp", "cp", "tp")}
    if experts and (mesh.tp > 1 or mesh.ep * mesh.etp > 1):
        few = gcd(mesh.edp, shard)
        sizes = {"pp": mesh.pp, "replicate": mesh.edp // few, "shard": few, "ep": mesh.ep, "etp": mesh.etp}
        expert_mesh = _mesh(device, mesh, sizes)
        options |= {name: _axis(expert_mesh, name) for name in ("ep", "etp")}
        options["experts"] = expert_mesh["ep", "etp"]
        options["sharded_experts"] = expert_mesh["replicate", "shard"] if mesh.edp > 1 else None
    many = mesh.dp * mesh.cp > 1 or options.get("sharded_experts") is not None
    tensor, sharded = state["tp"] if mesh.tp > 1 else None, state["replicate", "shard"] if many else None
    return Layout(**options, ranks=mesh.ranks, rank=dist.get_rank(), tensor=tensor, sharded=sharded)


def _mesh(device: str, mesh: Mesh, sizes: dict[str, int]) -> DeviceMesh:
    """Ranks as a grid of stages and what each holds, numbered in the plan's rank order."""
    kind = device.partition(":")[0]
    if mesh.order != DP_LAST:
        return init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    wide = mesh.tp * mesh.cp * mesh.dp
    ranks = torch.tensor([[mesh.rank(stage, place) for place in range(wide)] for stage in range(mesh.pp)])
    return DeviceMesh(kind, ranks.view(tuple(sizes.values())), mesh_dim_names=tuple(sizes))


def _axis(mesh: DeviceMesh, name: str) -> Axis:
    degree = mesh.size(mesh.mesh_dim_names.index(name))
    return Axis(degree=degree, index=mesh.get_local_rank(name), group=mesh.get_group(name) if degree > 1 else None)


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def sum_over(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:  # noqa: ARG001  (as the others are called)
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=axis.group)
    return x


def _gather_dim(x: Tensor, axis: Axis, dim: int) -> Tensor:
    rows = x.movedim(dim, 0).contiguous()
    gathered_rows = rows.new_empty((axis.degree * rows.shape[0], *rows.shape[1:]))
    _all_gather(gathered_rows, rows, group=axis.group)
    return gathered_rows.movedim(0, dim)


def _scatter_dim(x: Tensor, axis: Axis, dim: int) -> Tensor:
    rows = x.movedim(dim, 0).contiguous()
    own_rows = rows.new_empty((rows.shape[0] // axis.degree, *rows.shape[1:]))
    _reduce_scatter(own_rows, rows, group=axis.group)
    return own_rows.movedim(0, dim)


def _own_part(x: Tensor, axis: Axis, dim: int) -> Tensor:
    return x.chunk(axis.degree, dim)[axis.index].contiguous()


def _same(x: Tensor, axis: Axis, dim: int) -> Tensor:  # noqa: ARG001
    return x.view_as(x)


Exchange = Callable[[Tensor, Axis, int], Tensor]


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """A collective on the way forward and its transpose on the way back."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, there: Exchange, back: Exchange, axis: Axis, dim: int) -> Tensor:
        ctx.back, ctx.axis, ctx.dim = back, axis, dim
        return there(x, axis, dim)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.back(gradient, ctx.axis, ctx.dim), None, None, None, None


def _function(there: Exchange, back: Exchange) -> Callable[..., Tensor]:
    def exchange(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
        return x if axis.group is None else _Exchange.apply(x, there, back, axis, dim)

    return exchange


copy = _function(_same, sum_over)
reduce = _function(sum_over, _same)
gather = _function(_gather_dim, _scatter_dim)
scatter = _function(_scatter_dim, _gather_dim)
split = _function(_own_part, _gather_dim)
merge = _function(_gather_dim, _own_part)


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, sends: list[int], receives: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        return _swap_rows(x, sends, receives, group)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _swap_rows(gradient, ctx.receives, ctx.sends, ctx.group), None, None, None


def _swap_rows(x: Tensor, sends: list[int], receives: list[int], group: dist.ProcessGroup) -> Tensor:
    x = x.contiguous()
    out = x.new_empty((sum(receives), *x.shape[1:]))
    dist.all_to_all_single(out, x, receives, sends, group=group)
    return out


def all_to_all(x: Tensor, sends: Sequence[int], receives: Sequence[int], axis: Axis) -> Tensor:
    """Rows dealt to the ranks of an axis: `sends` of them to each, `receives` from each."""
    if axis.group is None:
        return x
    return _AllToAll.apply(x, list(sends), list(receives), axis.group)


def all_to_all_counts(counts: Tensor, axis: Axis) -> Tensor:
    """The row that each rank of the axis has for this one, of a table [ranks, ...]; no gradient."""
    if axis.group is None:
        return counts
    receives = torch.empty_like(counts)
    dist.all_to_all_single(receives, counts.contiguous(), group=axis.group)
    return receives


def swap_dims(x: Tensor, axis: Axis, away: int, here: int) -> Tensor:
    """Split `away` over the axis and make `here` whole: heads for sequence, and the other way round."""
    if axis.group is None:
        return x
    pieces = torch.cat([piece.unsqueeze(0) for piece in x.chunk(axis.degree, away)])  # [ranks, ...]
    ones = [1] * axis.degree
    swapped_pieces = all_to_all(pieces, ones, ones, axis)
    return torch.cat(swapped_pieces.unbind(0), here)
