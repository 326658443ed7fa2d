"""Turn a model into the op graph of a training step: one layer of each kind, each standing for all that are like it.

    graph_of_model(spec)      the module that `ridgeline run` trains, one layer of each distinct block
    graph_of_config(config)   the module that transformers builds, one layer of each kind
    graph_of_module(...)      a module of the user's, whole

Weights and activations have shapes and no values. The optimizer is one fused AdamW kernel for each parameter: it is
written down by its rule, not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.core.documents import JsonMapping
from ridgeline.core.dtype import dtype as dtype_of
from ridgeline.core.errors import InputError
from ridgeline.ir.op_graph import GraphLayer, GraphOp, GraphTensor, OpGraph, traffic
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.plan import Plan, Precision
from ridgeline.runtime.capture.op_recorder import GraphRecorder, record_step
from ridgeline.runtime.capture.recording import Recorder, capture_problem

MOMENTS = ("first moment", "second moment")
UPDATE_NOTE = "the optimizer is one fused AdamW kernel for each parameter, by its rule: it was not recorded"
MOMENT_FORMAT = "fp32"
"""Of AdamW's two moments."""


def graph_of_model(spec: ModelSpec, *, seq: int, batch: int) -> OpGraph:
    """A training step of the module that `ridgeline run` trains, in eager PyTorch without its fused kernels."""
    from ridgeline.runtime.train.assemble import Blueprint, assemble
    from ridgeline.runtime.train.layout import make_layout
    from ridgeline.runtime.train.refuse import model_refusals
    from ridgeline.runtime.train.request import forward_constants

    first = {block: index for index, block in reversed(list(enumerate(spec.order)))}
    order = tuple(spec.order[index] for index in sorted(first.values()))
    small = replace(spec, order=order)
    todo = "give the config.json of the model, which transformers builds, or module:function"
    if problems := [replace(problem, todo=problem.todo or todo) for problem in model_refusals(small)]:
        raise InputError(problems)
    form = dtype_of("bf16")
    plan = Plan(precision=Precision(compute=form, weights=form, activations=form))
    blueprint = Blueprint(
        model=small, constants=forward_constants(small), plan=plan, placement=(small.layers,), gradients=form,
        fuses=frozenset(),
    )  # fmt: skip
    layout = replace(make_layout(plan, experts=True, device="meta"), even=True)
    module = assemble(blueprint, layout).stages[0]
    depth = (1 + small.mtp.depth,) if small.mtp is not None else ()
    x = torch.empty((batch, seq), dtype=torch.int64, device="meta")
    targets = torch.empty((batch, *depth, seq), dtype=torch.int64, device="meta")
    further = torch.empty((batch, *depth, seq), dtype=torch.int64, device="meta") if depth else None
    recorder = record_step(module, lambda _: module(x, targets, 1.0, further), (x, targets))
    counts = {f"layers.{index}": spec.order.count(kind) for index, kind in enumerate(order)}
    return finish_graph(recorder, spec.id, counts)


def graph_of_module(module: nn.Module, args: tuple[object, ...], named: Mapping[str, object], name: str) -> OpGraph:
    """A step of a module of the user's; each of its results gets a gradient."""
    try:
        recorder = record_step(module, lambda _: module(*args, **named), (args, dict(named)))
    except InputError:
        raise
    except Exception as wrong:
        raise InputError(capture_problem(name, wrong)) from None
    return finish_graph(recorder, name, {})


def graph_of_config(data: JsonMapping, *, seq: int, batch: int, name: str = "") -> OpGraph:
    """A training step of the module that transformers builds, with the loss of its next tokens."""
    from ridgeline.runtime.capture.transformers_models import build_module, config_of, speaking, whole_attention

    config, label = config_of(data), name or str(data.get("model_type"))
    problems: list[InputError] = []
    for tells_all in (True, False):  # some types attend in a way of their own
        holder: list[Recorder] = []
        try:
            with whole_attention(holder):
                module = build_module(config, told=tells_all)
                counts = keep_one_of_each(module)
                run = _language_step(speaking(module), holder, (batch, seq))
                return finish_graph(record_step(module, run, ()), label, counts)
        except InputError as wrong:
            problems.append(wrong)
        except Exception as wrong:
            problems.append(InputError(capture_problem(label, wrong)))
    raise problems[-1] from None


def _language_step(
    called: nn.Module, holder: list[Recorder], size: tuple[int, int]
) -> Callable[[GraphRecorder], Tensor | Sequence[Tensor]]:
    """A forward of token ids with the loss of its logits; what it returns where it has none."""
    ids = torch.zeros(size, dtype=torch.int64)

    def run(recorder: GraphRecorder) -> Tensor | Sequence[Tensor]:
        holder.append(recorder)
        answer = called(input_ids=ids, use_cache=False)
        logits = getattr(answer, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3:
            return [x for x in answer.values() if isinstance(x, Tensor)]
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten().to(logits.device))

    return run


def keep_one_of_each(module: nn.Module) -> dict[str, int]:
    """Cut lists of layers to one of each kind, and say by path for how many each stands.

    Layers are alike where their modules, parameters and kinds of attention are.
    """
    counts: dict[str, int] = {}
    for path, part in list(module.named_modules()):
        if not isinstance(part, nn.ModuleList) or len(part) < 2:
            continue
        config = getattr(module, "config", None)
        texts = (config, getattr(config, "text_config", None))
        owner = next((text for text in texts if getattr(text, "num_hidden_layers", 0) == len(part)), None)
        if owner is not None:
            counts |= _cut_layers(owner, path, part)
            break
    return counts


def _cut_layers(config: object, path: str, layers: nn.ModuleList) -> dict[str, int]:
    """One of each kind stays in a list; nothing is cut where the config says kinds that cannot be changed."""
    kinds = list(getattr(config, "layer_types", None) or [""] * len(layers))
    signatures = [(kind, _signature(layer)) for kind, layer in zip(kinds, layers, strict=False)]
    places = sorted({signature: index for index, signature in reversed(list(enumerate(signatures)))}.values())
    try:
        if getattr(config, "layer_types", None):
            config.layer_types = [kinds[index] for index in places]  # type: ignore[attr-defined]
        config.num_hidden_layers = len(places)  # type: ignore[attr-defined]
    except AttributeError:
        return {}
    chosen = [layers[index] for index in places]
    del layers[:]
    layers.extend(chosen)
    for place, layer in enumerate(chosen):
        for inner in layer.modules():
            if isinstance(getattr(inner, "layer_idx", None), int):
                inner.layer_idx = place
    return {f"{path}.{place}": signatures.count(signatures[index]) for place, index in enumerate(places)}


def _signature(layer: nn.Module) -> tuple[object, ...]:
    sizes = tuple((name, tuple(weight.shape)) for name, weight in layer.named_parameters())
    facts = tuple(
        (path, type(part).__name__, getattr(part, "sliding_window", None), getattr(part, "use_rope", None))
        for path, part in layer.named_modules()
    )
    return sizes, repr(facts)


def finish_graph(recorder: GraphRecorder, name: str, counts: Mapping[str, int]) -> OpGraph:
    """The recorded graph with how often each layer runs, and the optimizer behind it."""
    graph = recorder.graph(name)
    times = {f"{path}.": count for path, count in counts.items()}

    def count_of(path: str) -> int:
        return next((count for start, count in times.items() if f"{path}.".startswith(start)), 1)

    ops = [replace(op, count=count_of(op.module)) for op in graph.ops]
    tensors = list(graph.tensors)
    for tensor in graph.tensors:
        if tensor.role == "weight" and tensor.alias_of < 0:
            ops.append(_update(tensors, tensor, len(ops), count_of(tensor.name)))
    notes = [UPDATE_NOTE]
    if counts:
        notes.append("one layer of each kind was recorded; each stands for as many as its ops' count says")
    layers = tuple(GraphLayer(path=path, count=count) for path, count in counts.items())
    return replace(graph, ops=tuple(ops), tensors=tuple(tensors), layers=layers, notes=tuple(notes))


def _update(tensors: list[GraphTensor], weight: GraphTensor, number: int, count: int) -> GraphOp:
    """AdamW of one parameter: weight, gradient and moments read, weight and moments written."""
    gradient = GraphTensor(
        id=len(tensors), shape=weight.shape, dtype=weight.dtype, role="gradient", name=f"{weight.name}.grad"
    )
    moments = [
        GraphTensor(
            id=len(tensors) + 1 + place, shape=weight.shape, dtype=MOMENT_FORMAT, role="state",
            name=f"{weight.name}, {word}",
        )
        for place, word in enumerate(MOMENTS)
    ]  # fmt: skip
    tensors += [gradient, *moments]
    written = [weight, *moments]
    return GraphOp(
        id=number, name="optim.adamw", kind="pointwise", module=weight.name.rpartition(".")[0], phase="optimizer",
        inputs=(weight.id, gradient.id, *(moment.id for moment in moments)),
        outputs=tuple(tensor.id for tensor in written),
        bytes_read=traffic([weight, gradient, *moments]), bytes_written=traffic(written), count=count,
    )  # fmt: skip
