"""FSDP2's own books, the one place that reads its private names: which weights travel together, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def shard_groups(module: nn.Module) -> Iterator[Any]:
    """Parameter groups of a module and of all modules inside it that are sharded."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            state = part._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            single_group = getattr(state, "_fsdp_param_group", None)
            yield from groups if groups is not None else [single_group] if single_group else []


def padded_elements(module: nn.Module) -> dict[int, int]:
    """Elements that travel for the weights of a group, and that they are, where rows were added to cut them evenly."""
    elements: dict[int, int] = {}
    for group in shard_groups(module):
        ranks = group.mesh_info.shard_mesh_size
        there = sum(fsdp_param.padded_sharded_param_size.numel() * ranks for fsdp_param in group.fsdp_params)
        elements[there] = sum(fsdp_param._orig_size.numel() for fsdp_param in group.fsdp_params)
    return {there: local for there, local in elements.items() if there != local}


def gathered_weights(module: nn.Module) -> Iterator[Tensor]:
    """Whole weights as they are gathered; their memory comes and goes."""
    for group in shard_groups(module):
        for fsdp_param in group.fsdp_params:
            yield from getattr(fsdp_param, "all_gather_outputs", ())
