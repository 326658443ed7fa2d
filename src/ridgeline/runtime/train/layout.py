"""Turn a plan's mesh into process groups and device meshes, and say which tokens this rank holds.

Ranks are numbered as `plan.mesh.Mesh` says: tp varies fastest, then cp, dp, pp. The same ranks are seen three ways:

    pp x dp x cp x tp                        who shares a sequence, a matrix, a stage
    pp x replicate x shard x tp              replicate x shard = dp x cp: how state is sharded
    pp x replicate x shard x ep x etp        the same for experts, folded over tp x cp x dp

A `Layout` of one process has no meshes, and every collective of it is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

from ridgeline.plan.mesh import DP_LAST, Mesh
from ridgeline.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """This rank along one axis: how many there are, which one it is, and the group to talk to (None: alone)."""

    degree: int = 1
    index: int = 0
    group: Any = None


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
    tensor: Any = None
    experts: Any = None
    sharded: Any = None
    sharded_experts: Any = None
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


def make_layout(plan: Plan, *, experts: bool, device: str = "cpu") -> Layout:
    """The layout of this process; the default process group must exist where the plan has more than one rank.

    experts   the model has some: where tensor ranks are not expert ranks they are replicas of experts
    """
    mesh = plan.mesh
    told: dict[str, Any] = {
        "device": device,
        "sequence_parallel": plan.sequence_parallel and mesh.tp > 1,
        "cp_kind": plan.switches.cp_kind,
    }
    if mesh.ranks == 1:
        return Layout(**told)
    import torch.distributed as dist

    shard = plan.shard_degree
    dense = _mesh(device, mesh, {"pp": mesh.pp, "dp": mesh.dp, "cp": mesh.cp, "tp": mesh.tp})
    sizes = {"pp": mesh.pp, "replicate": mesh.dp * mesh.cp // shard, "shard": shard, "tp": mesh.tp}
    state = _mesh(device, mesh, sizes)
    axes: dict[str, Any] = {name: _axis(dense, name) for name in ("pp", "dp", "cp", "tp")}
    if experts and (mesh.tp > 1 or mesh.ep * mesh.etp > 1):
        few = gcd(mesh.edp, shard)
        sizes = {"pp": mesh.pp, "replicate": mesh.edp // few, "shard": few, "ep": mesh.ep, "etp": mesh.etp}
        expert_mesh = _mesh(device, mesh, sizes)
        axes |= {name: _axis(expert_mesh, name) for name in ("ep", "etp")}
        told["experts"] = expert_mesh["ep", "etp"]
        told["sharded_experts"] = expert_mesh["replicate", "shard"] if mesh.edp > 1 else None
    many = mesh.dp * mesh.cp > 1 or told.get("sharded_experts") is not None
    return Layout(
        **told,
        **axes,
        ranks=mesh.ranks,
        rank=dist.get_rank(),
        tensor=state["tp"] if mesh.tp > 1 else None,
        sharded=state["replicate", "shard"] if many else None,
    )


def _mesh(device: str, mesh: Mesh, sizes: dict[str, int]) -> Any:
    """Ranks as a grid of stages and what each holds, numbered in the plan's rank order."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    kind = device.partition(":")[0]
    if mesh.order != DP_LAST:
        return init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    wide = mesh.tp * mesh.cp * mesh.dp
    ranks = torch.tensor([[mesh.rank(stage, place) for place in range(wide)] for stage in range(mesh.pp)])
    return DeviceMesh(kind, ranks.view(tuple(sizes.values())), mesh_dim_names=tuple(sizes))


def _axis(mesh: Any, name: str) -> Axis:
    degree = mesh.size(mesh.mesh_dim_names.index(name))
    return Axis(degree=degree, index=mesh.get_local_rank(name), group=mesh.get_group(name) if degree > 1 else None)
