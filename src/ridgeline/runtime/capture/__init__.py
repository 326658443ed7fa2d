"""Turn any torch module into a ModelSpec by recording one forward of it, without weights (`ridgeline.capture`).

    capture(module, example_inputs)     a module of your own
    capture_config(config)              a config.json of transformers, also of a type without a reader

The only room that turns torch modules into descriptions; `python -m ridgeline.runtime.capture` does it for a process
without torch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.errors import InputError
from ridgeline.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import nn

TOKENS = 72  # of a recorded sequence: no usual size of a head, so that a dim of it is the sequence


def capture(module: nn.Module, example_inputs: Any, *, id: str = "") -> ModelSpec:
    """The model that a module is: layers, products, attention, parameters, cache, from one forward on the meta device.

    `example_inputs` is a tensor, a tuple or a dict that the module is called with. The module stays as it is.
    """
    import torch

    from ridgeline.runtime.capture.assemble import spec_of
    from ridgeline.runtime.capture.recording import failed, recorded

    args, named = _arguments(example_inputs)
    empty = _on_meta(module)
    try:
        recording = recorded(empty, lambda _: empty(*args, **named), (args, named))
    except InputError:
        raise
    except Exception as wrong:
        raise InputError(failed(type(module).__name__, wrong)) from None
    kind = id or type(module).__name__
    return spec_of(recording, empty, id=kind, by=f"torch {torch.__version__}", tokens=_lengths(args, named))


def capture_config(data: Mapping[str, Any], *, id: str = "", tokens: int = TOKENS) -> ModelSpec:
    """The model that a config of transformers describes, captured from the module that transformers builds of it."""
    import torch
    import transformers

    from ridgeline.runtime.capture.assemble import spec_of
    from ridgeline.runtime.capture.transformers_models import config_of, forward_of

    config = config_of(data)
    try:
        ran = forward_of(config, tokens, told=True)
    except InputError:
        ran = forward_of(config, tokens, told=False)
    by = f"transformers {transformers.__version__}, torch {torch.__version__}"
    kind = id or str(data.get("model_type"))
    return spec_of(ran.recording, ran.module, id=kind, by=by, tokens=(tokens,), seen=ran.seen)


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, (tuple, list)) else ((given,), {})


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy of a module without its values."""
    import torch

    weights = {id(one): one for one in (*module.parameters(), *module.buffers())}
    memo: dict[int, Any] = {}
    for key, one in weights.items():
        empty = torch.empty_like(one, device="meta")
        memo[key] = torch.nn.Parameter(empty, one.requires_grad) if isinstance(one, torch.nn.Parameter) else empty
    return copy.deepcopy(module, memo).eval()


def _lengths(args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[int, ...]:
    first = next((x for x in (*args, *named.values()) if hasattr(x, "shape") and len(x.shape) > 1), None)
    return (int(first.shape[1]),) if first is not None else ()
