"""Turn a module with a recurrence into the part of a model that it is, if its parameters are exactly that part's.

A forward without fused kernels spells a scan out, so that shapes of ops say little; the sizes are read from the
module's own attributes and proved by its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.spec import GatedDeltaNet, Mamba2, Recurrence
from ridgeline.runtime.capture.graph import Shapes

State = Mamba2 | GatedDeltaNet | Recurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundState:
    """A recurrent mixer and the module that it is."""

    part: State
    path: str


def recurrent_in(modules: Mapping[str, nn.Module], layer: str, shapes: Shapes, hidden: int) -> FoundState | None:
    """The recurrent mixer under a layer's path."""
    for path, module in modules.items():
        if not path.startswith(f"{layer}."):
            continue
        total = sum(prod(shape) for name, shape in shapes.items() if name.startswith(f"{path}."))
        for form in FORMS:
            part = next((mixer for mixer in form(module) if total == mixer_parts(mixer, hidden).params), None)
            if part is not None:
                return FoundState(part=part, path=path)
    return None


def _sizes(module: nn.Module, *names: tuple[str, ...]) -> list[int]:
    """The first attribute of each tuple of names; nothing where one is no count."""
    sizes: list[int] = []
    for options in names:
        value: Any = next((getattr(module, option) for option in options if hasattr(module, option)), None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return []
        sizes.append(value)
    return sizes


def _has_bias(module: nn.Module, *names: str) -> bool:
    """Whether the first of its parts with such a name has a bias."""
    part = next((getattr(module, name) for name in names if isinstance(getattr(module, name, None), nn.Module)), None)
    return getattr(part, "bias", None) is not None


def _chunk(module: nn.Module, usual: int) -> int:
    return next(iter(_sizes(module, ("chunk_size", "block_size"))), usual)


def _mamba2(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(
        module, ("num_heads", "n_heads"), ("head_dim",), ("ssm_state_size", "state_size", "d_state"),
        ("n_groups", "ngroups"), ("conv_kernel_size", "d_conv", "conv_kernel"),
    )  # fmt: skip
    if not sizes or not hasattr(module, "conv1d") or not hasattr(module, "in_proj"):
        return
    heads, head_dim, state, groups, kernel = sizes
    for norm in (True, False):
        yield Mamba2(
            heads=heads, head_dim=head_dim, state=state, groups=groups, conv=kernel, gated_norm=norm,
            conv_bias=_has_bias(module, "conv1d"), proj_bias=_has_bias(module, "in_proj"), chunk=_chunk(module, 128),
        )  # fmt: skip


def _delta(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(
        module, ("num_k_heads",), ("num_v_heads",), ("head_k_dim",), ("head_v_dim",), ("conv_kernel_size",)
    )  # fmt: skip
    if sizes:
        key_heads, value_heads, key_dim, value_dim, kernel = sizes
        yield GatedDeltaNet(
            key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim, conv=kernel
        )


def _selective(module: nn.Module) -> Iterator[State]:
    """Mamba 1, and Jamba's with norms of what its steps are made of."""
    sizes = _sizes(
        module, ("intermediate_size", "d_inner"), ("ssm_state_size", "d_state"), ("time_step_rank", "dt_rank"),
        ("conv_kernel_size", "d_conv"),
    )  # fmt: skip
    if not sizes or not hasattr(module, "conv1d"):
        return
    inner, state, rank, kernel = sizes
    for norms in (False, True):
        yield Recurrence(
            form="selective", heads=inner, key_dim=state, rank=rank, conv=kernel, inner_norms=norms,
            conv_bias=_has_bias(module, "conv1d"), bias=_has_bias(module, "in_proj"),
        )  # fmt: skip


def _short_conv(module: nn.Module) -> Iterator[State]:
    conv, project = getattr(module, "conv", None), getattr(module, "in_proj", None)
    if isinstance(conv, nn.Conv1d) and isinstance(project, nn.Linear) and project.out_features % 3 == 0:
        yield Recurrence(
            form="short-conv", heads=project.out_features // 3, conv=int(conv.kernel_size[0]),
            conv_bias=conv.bias is not None, bias=project.bias is not None,
        )  # fmt: skip


def _lightning(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(module, ("num_attention_heads",), ("head_dim",), ("block_size",))
    if sizes and hasattr(module, "output_gate"):
        heads, size, chunk = sizes
        yield Recurrence(form="lightning", heads=heads, key_dim=size, value_dim=size, chunk=chunk)


def _kda(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(module, ("num_heads",), ("head_dim",), ("conv_kernel_size", "conv_size"))
    if sizes and hasattr(module, "b_proj"):
        heads, size, kernel = sizes
        yield Recurrence(form="kda", heads=heads, key_dim=size, value_dim=size, rank=size, conv=kernel)


def _wkv(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(module, ("attention_hidden_size",))
    if sizes and hasattr(module, "time_decay"):
        yield Recurrence(form="wkv", heads=sizes[0])


FORMS: tuple[Callable[[nn.Module], Iterator[State]], ...] = (
    _mamba2, _delta, _selective, _short_conv, _lightning, _kda, _wkv,
)  # fmt: skip
"""What a recurrent module may be, each as the parts that its attributes allow."""
