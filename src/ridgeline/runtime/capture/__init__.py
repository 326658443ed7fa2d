"""Turn any torch module into a ModelSpec by recording one forward of it, without weights (`ridgeline.capture`).

    capture(module, example_inputs)     a module of your own
    capture_config(config)              a config.json of transformers, also of a type without a reader
    graph_of_...                        a training step of the same as an op graph: see `graphs`

The only room that turns torch modules into descriptions; `python -m ridgeline.runtime.capture` does it for a process
without torch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import nn

    from ridgeline.ir.op_graph import OpGraph
    from ridgeline.runtime.capture.assemble import Seen

__all__ = ["capture", "capture_config", "graph_of_config", "graph_of_model", "graph_of_reference"]

TOKENS = 72  # of a recorded sequence: no usual size of a head, so that a dim of it is the sequence


def capture(module: nn.Module, example_inputs: object, *, id: str = "") -> ModelSpec:
    """The model that a module is: layers, products, attention, parameters, cache, from one forward on the meta device.

    `example_inputs` is a tensor, a tuple or a dict that the module is called with. The module stays as it is.
    """
    import torch

    from ridgeline.runtime.capture.assemble import spec_of
    from ridgeline.runtime.capture.recording import capture_problem, record_forward

    if isinstance(module, torch.jit.ScriptModule):
        expected_text, todo = "a module of Python code", "give the module that was scripted or traced"
        raise InputError(Problem(path="module", given="a TorchScript module", expected=expected_text, todo=todo))
    args, keywords = _arguments(example_inputs)
    empty = _on_meta(module)
    wrongs: list[Exception] = []
    for by_decision in (False, True):
        try:
            inputs = {**{str(place): argument for place, argument in enumerate(args)}, **keywords}
            recording = record_forward(empty, lambda _: empty(*args, **keywords), inputs, decided=by_decision)
        except InputError:
            raise
        except Exception as wrong:
            wrongs.append(wrong)
            continue
        kind = id or type(module).__name__
        first = next((x for x in inputs.values() if hasattr(x, "shape") and len(x.shape) > 1), None)
        by, tokens = f"torch {torch.__version__}", (int(first.shape[1]),) if first is not None else ()
        return spec_of(recording, empty, id=kind, by=by, tokens=tokens, seen=_media_of(inputs))
    raise InputError(capture_problem(type(module).__name__, wrongs[0])) from None


def capture_config(data: JsonMapping, *, id: str = "", tokens: int = TOKENS) -> ModelSpec:
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


def graph_of_model(spec: ModelSpec, *, seq: int, batch: int) -> OpGraph:
    """A training step of the module that `ridgeline run` trains: see `graphs`."""
    from ridgeline.runtime.capture import graphs

    return graphs.graph_of_model(spec, seq=seq, batch=batch)


def graph_of_config(data: JsonMapping, *, seq: int, batch: int, name: str = "") -> OpGraph:
    """A training step of the module that transformers builds of a config: see `graphs`."""
    from ridgeline.runtime.capture import graphs

    return graphs.graph_of_config(data, seq=seq, batch=batch, name=name)


def graph_of_reference(reference: str) -> OpGraph:
    """A step of the module that a function of the user's returns with example inputs; what it prints goes to stderr."""
    import sys
    from contextlib import redirect_stdout

    from ridgeline.runtime.bringup.subject import made_module
    from ridgeline.runtime.bringup.target import OwnModule
    from ridgeline.runtime.capture import graphs

    with redirect_stdout(sys.stderr):
        module, inputs = made_module(OwnModule(reference=reference))
        args, keywords = _arguments(inputs)
        return graphs.graph_of_module(_on_meta(module), args, keywords, reference.rpartition(":")[2])


def _arguments(given: Any) -> tuple[tuple[object, ...], JsonObject]:
    """Positions and names of inputs; floats without their values, as the weights are."""
    import torch
    from torch.utils._pytree import tree_map

    def empty_tensor(x: object) -> object:
        return x.to("meta") if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    given = tree_map(empty_tensor, dict(given) if isinstance(given, Mapping) else given)
    if isinstance(given, dict):
        return (), given
    return (tuple(given), {}) if isinstance(given, (tuple, list)) else ((given,), {})


def _media_of(given: JsonMapping) -> Seen | None:
    from ridgeline.runtime.capture.assemble import Seen, Shown

    image = next((x for x in given.values() if hasattr(x, "shape") and len(x.shape) > 3), None)
    return Seen(shown=Shown(image=int(image.shape[-1]))) if image is not None else None


def _on_meta(module: nn.Module) -> nn.Module:
    import torch

    weights = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    memo: dict[int, object] = {}
    for key, tensor in weights.items():
        empty = torch.empty_like(tensor, device="meta")
        memo[key] = torch.nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else empty
    return copy.deepcopy(module, memo).eval()
