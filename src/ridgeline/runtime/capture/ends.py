"""Turn what stands outside a recording's layers into embedding, final norm and head; the rest goes to its neighbours.

Products before the layers run with the first one, those behind with the last: that is where a pipeline puts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ridgeline.models.spec import Captured, Embedding, Norm
from ridgeline.runtime.capture.blocks import norm_kind
from ridgeline.runtime.capture.graph import LayerGraph, Multiplied, Shapes
from ridgeline.runtime.capture.layers import Layers
from ridgeline.runtime.capture.recording import Recording
from ridgeline.runtime.capture.remainder import remainder


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Embedding, norm and head; captured work before and behind the layers; whether no output has the vocabulary."""

    vocab: int
    embedding: Embedding
    norm: Norm | None
    before: Captured | None = None
    behind: Captured | None = None
    headless: bool = False


def ends_of(recording: Recording, layers: Layers, shapes: Shapes, hidden: int, tokens: int) -> Ends:
    """The two ends of a recorded model."""
    first, last = _span(layers, len(recording.nodes))
    graph = LayerGraph(recording, layers.outside, shapes)
    layer_params = {name for layer in layers.calls for name in layer.params}
    rows = _rows(graph, shapes, layer_params)
    end_params = {
        name
        for node in graph.nodes.values()
        if node.op == "embedding" and node.inputs[-1] >= 0
        for name in node.weights
    }
    table = max(rows, key=lambda name: (name in end_params, shapes[name][0]), default="")
    vocab, width = shapes[table] if table else (0, 0)
    head = next((product for product in reversed(graph.products) if product.outputs == vocab and product.weight), None)
    if not table:
        head = next((product for product in reversed(graph.products) if product.node > last and product.weight), None)
        vocab = head.outputs if head else 1
    used = {head.node} if head else set()
    projections = _projections(graph, width, hidden, (first, last), used) if table and width != hidden else ()
    used |= {product.node for product in projections}
    embedding = Embedding(
        tied=head is None or not table or head.weight == table,
        width=width if projections else 0,
        positions=sum(shapes[name][0] for name in rows if name != table and shapes[name][1] == hidden),
        norm=_norm(recording, layers, shapes, hidden, range(first)),
        head_bias=bool(head and head.bias and table),
    )
    norm = _norm(recording, layers, shapes, hidden, range(last, len(recording.nodes)))
    sides = [
        _remaining_ends(recording, [place for place in layers.outside if (place < last) is ahead], shapes, tokens, used)
        for ahead in (True, False)
    ]
    return Ends(
        vocab=vocab, embedding=embedding, norm=norm, before=sides[0], behind=sides[1], headless=head is None
    )  # fmt: skip


def _span(layers: Layers, end: int) -> tuple[int, int]:
    """Places of the first op of a layer and behind the last one."""
    places = [place for layer in layers.calls for place in (layer.places[0], layer.places[-1])]
    return (min(places), max(places) + 1) if places else (0, end)


def _rows(graph: LayerGraph, shapes: Shapes, owned: set[str]) -> list[str]:
    """Parameters that rows are looked up in, outside of layers."""
    names = [
        name for node in graph.nodes.values() if node.op == "embedding" for name in node.weights if name in shapes
    ]  # fmt: skip
    return [name for name in dict.fromkeys(names) if len(shapes[name]) == 2 and name not in owned]


def _projections(
    graph: LayerGraph, width: int, hidden: int, span: tuple[int, int], used: set[int]
) -> tuple[Multiplied, ...]:
    """The two products that join rows of another width with the layers."""
    into = [
        product
        for product in graph.products
        if (product.inputs, product.outputs) == (width, hidden) and product.node < span[0]
    ]
    out = [
        product
        for product in graph.products
        if (product.inputs, product.outputs) == (hidden, width) and product.node >= span[1]
    ]
    pair = (*into[:1], *(product for product in out[:1] if product.node not in used))
    return pair if len(pair) == 2 else ()


def _norm(
    recording: Recording, layers: Layers, shapes: Mapping[str, tuple[int, ...]], hidden: int, where: range
) -> Norm | None:
    """The norm of the hidden width that ran outside the layers in a range of places."""
    for place in layers.outside:
        node = recording.nodes[place]
        if place not in where or not node.calls:
            continue
        call = recording.calls[node.calls[-1]]
        if "norm" in call.kind.lower() and call.read[-1:] == (hidden,):
            bias = f"{call.path}.bias" in shapes
            return Norm(kind=norm_kind(call.kind, bias), bias=bias, weight=f"{call.path}.weight" in shapes)
    return None


def _remaining_ends(
    recording: Recording, places: Sequence[int], shapes: Shapes, tokens: int, used: set[int]
) -> Captured | None:  # fmt: skip
    graph = LayerGraph(recording, places, shapes)
    unused_names = {product.weight for product in graph.products if product.node not in used and product.weight}
    unused_names |= {product.bias for product in graph.products if product.node not in used and product.bias}
    params = sum(prod(shapes[name]) for name in unused_names if name in shapes)
    remainder_ = remainder(graph, tokens, used, params, streams=False)
    return remainder_ if remainder_ and (remainder_.products or remainder_.mixes) else None
