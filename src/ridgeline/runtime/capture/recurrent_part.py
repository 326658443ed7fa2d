"""Turn a module with a recurrence into the part of a model that it is, if its parameters are exactly that part's.

A forward without fused kernels spells a scan out, so that shapes of ops say little; the sizes are read from the
module's own attributes and proved by its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from ridgeline.models.params import mixer_params
from ridgeline.models.spec import GatedDeltaNet, Mamba2
from ridgeline.runtime.capture.graph import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundState:
    """A recurrent mixer and the module that it is."""

    part: Mamba2 | GatedDeltaNet
    path: str


def recurrent_in(modules: Mapping[str, nn.Module], layer: str, shapes: Shapes, hidden: int) -> FoundState | None:
    """The recurrent mixer under a layer's path."""
    for path, module in modules.items():
        if not path.startswith(f"{layer}."):
            continue
        for part in (_mamba2(module), _delta(module)):
            if part is None:
                continue
            total = sum(prod(shape) for name, shape in shapes.items() if name.startswith(f"{path}."))
            if total == mixer_params(part, hidden):
                return FoundState(part=part, path=path)
    return None


def _sizes(module: nn.Module, *names: tuple[str, ...]) -> list[int] | None:
    """The first attribute of each tuple of names; None where one is no count."""
    found: list[int] = []
    for options in names:
        value: Any = next((getattr(module, one) for one in options if hasattr(module, one)), None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return None
        found.append(value)
    return found


def _mamba2(module: nn.Module) -> Mamba2 | None:
    sizes = _sizes(
        module, ("num_heads", "n_heads"), ("head_dim",), ("ssm_state_size", "state_size", "d_state"),
        ("n_groups", "ngroups"), ("conv_kernel_size", "d_conv", "conv_kernel"),
    )  # fmt: skip
    conv = getattr(module, "conv1d", None)
    project = getattr(module, "in_proj", None)
    if sizes is None or not isinstance(conv, nn.Module) or not isinstance(project, nn.Module):
        return None
    heads, head_dim, state, groups, kernel = sizes
    return Mamba2(
        heads=heads, head_dim=head_dim, state=state, groups=groups, conv=kernel,
        conv_bias=getattr(conv, "bias", None) is not None, proj_bias=getattr(project, "bias", None) is not None,
    )  # fmt: skip


def _delta(module: nn.Module) -> GatedDeltaNet | None:
    sizes = _sizes(
        module, ("num_k_heads",), ("num_v_heads",), ("head_k_dim",), ("head_v_dim",), ("conv_kernel_size",)
    )  # fmt: skip
    if sizes is None:
        return None
    key_heads, value_heads, key_dim, value_dim, kernel = sizes
    return GatedDeltaNet(
        key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim, conv=kernel
    )
