"""Turn one recorded layer into a Block: known parts where products and attention say so, a captured rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from torch import nn

from ridgeline.models.params import block_params
from ridgeline.models.spec import Attention, Block, Captured, Ffn, Mixer, Norm
from ridgeline.runtime.capture.attention_part import attention_at
from ridgeline.runtime.capture.ffn_part import experts, mlps
from ridgeline.runtime.capture.graph import LayerGraph, Shapes
from ridgeline.runtime.capture.layers import LayerCall
from ridgeline.runtime.capture.recording import Recording
from ridgeline.runtime.capture.recurrent_part import recurrent_in
from ridgeline.runtime.capture.remainder import remainder


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What a layer is read against: the recording, all parameters, the model's width and tokens, its modules."""

    recording: Recording
    shapes: Shapes
    hidden: int
    tokens: int
    modules: Mapping[str, nn.Module]
    lists: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class _Parts:
    """Parts as they are found, with the products and attentions they explain."""

    mixer: Mixer | None = None
    beside: Mixer | None = None
    ffn: Ffn | None = None
    used: set[int]
    attended: set[int]
    ignored: set[int]
    leaves: int = -1
    enters: tuple[int, ...] = ()


def block_of(within: Within, layer: LayerCall) -> Block:
    """The block that a layer is; one whose parts would hold more parameters than it has is captured as a whole."""
    graph = LayerGraph(within.recording, layer.places, within.shapes)
    total = sum(prod(within.shapes[name]) for name in layer.params)
    if layer.width == within.hidden:
        parts = _parts(within, graph, layer)
        block = _assemble_block(within, graph, layer, parts, total)
        if block is not None and (block.mixer or block.ffn):
            return block
    remainder_ = remainder(graph, within.tokens, (), total, streams=True) or Captured(params=total)
    return Block(mixer=None, ffn=None, norms=0, captured=remainder_)


def _parts(within: Within, graph: LayerGraph, layer: LayerCall) -> _Parts:
    parts = _Parts(used=set(), attended=set(), ignored=set())
    state = recurrent_in(within.modules, layer.path, within.shapes, within.hidden)
    if state is not None:
        parts.beside = state.part
        inside = {place for place in graph.nodes if f"{graph.path(place)}.".startswith(f"{state.path}.")}
        parts.used |= {product.node for product in graph.products if product.node in inside}
        parts.ignored |= inside
        weighted_nodes = [product.node for product in graph.products if product.node in inside and product.weight]
        parts.leaves = max(weighted_nodes, default=-1)
    for place in graph.attentions:
        attention = attention_at(graph, place, within.hidden) if parts.mixer is None else None
        if attention is not None:
            parts.mixer, parts.leaves = attention.part, attention.leaves
            parts.used |= attention.used
            parts.attended.add(place)
            parts.ignored |= attention.norms
    if parts.mixer is None:
        parts.mixer, parts.beside = parts.beside, None
    unused_products = [product for product in graph.products if product.node not in parts.used and product.weight]
    expert_part = experts(graph, within.hidden, unused_products, within.lists)
    if expert_part is not None:
        parts.ffn, parts.enters = expert_part.part, expert_part.enters
        parts.used |= expert_part.used
        return parts
    dense = mlps(graph, within.hidden, unused_products)
    if dense:
        widest = max(dense, key=lambda one: one.part.hidden)
        parts.ffn, parts.enters = widest.part, widest.enters
        parts.used |= widest.used
    return parts


def _assemble_block(within: Within, graph: LayerGraph, layer: LayerCall, parts: _Parts, total: int) -> Block | None:
    norm, norms = _norms(within, graph, layer, parts)
    parallel = bool(parts.mixer and parts.ffn and parts.leaves >= 0 and parts.leaves not in graph.above(parts.enters))
    block = Block(
        mixer=parts.mixer, beside=parts.beside, ffn=parts.ffn, norm=norm, norms=norms, parallel=parallel
    )  # fmt: skip
    fitting = _within_its_parameters(block, within.hidden, total)
    if fitting is None:
        return None
    block = fitting
    missing_params = total - block_params(block, within.hidden)
    unused_names = {
        name for product in graph.products if product.node not in parts.used for name in (product.weight, product.bias)
    }
    owned_params = sum(prod(within.shapes[name]) for name in unused_names if name in layer.params)
    taken_params = min(owned_params, missing_params)
    captured_part = remainder(
        _without(graph, parts.ignored - parts.attended),
        within.tokens,
        parts.used,
        taken_params,
        streams=False,
        attended=parts.attended,
    )
    if captured_part is None or not (captured_part.products or captured_part.mixes):
        captured_part, taken_params = None, 0
    return replace(block, captured=captured_part, extra=missing_params - taken_params)


def _without(graph: LayerGraph, ignored: set[int]) -> LayerGraph:
    """The graph less what a part explains that is no product."""
    kept_places = [place for place in graph.nodes if place not in ignored]
    graph_without = LayerGraph(graph.recording, (), graph.shapes)
    graph_without.nodes = {place: graph.nodes[place] for place in kept_places}
    graph_without.scored = graph.scored
    return graph_without


def _within_its_parameters(block: Block, hidden: int, total: int) -> Block | None:
    """The block with what a layer can hold: norms of queries and biases that it has no parameters for are left out."""
    tries = [block]
    if isinstance(block.mixer, Attention):
        plain = replace(block.mixer, qk_norm="none")
        tries += [replace(block, mixer=plain), replace(block, mixer=replace(plain, qkv_bias=False, out_bias=False))]
    return next((block for block in tries if block_params(block, hidden) <= total), None)


def _norms(within: Within, graph: LayerGraph, layer: LayerCall, parts: _Parts) -> tuple[Norm, int]:
    """The norms of the hidden width in a layer, those of queries and keys apart, and their kind."""
    inner = {
        graph.nodes[place].calls[-1] for place in parts.ignored if place in graph.nodes and graph.nodes[place].calls
    }
    calls = {call for place in layer.places for call in within.recording.nodes[place].calls}
    norms = [
        call for number, call in ((call, within.recording.calls[call]) for call in sorted(calls))
        if "norm" in call.kind.lower() and call.read[-1:] == (within.hidden,)
        and number not in inner and call.path != layer.path
    ]  # fmt: skip
    paths = list(dict.fromkeys(call.path for call in norms))
    if not paths:
        return Norm(), 0
    weight = any(f"{path}.weight" in within.shapes for path in paths)
    bias = any(f"{path}.bias" in within.shapes for path in paths)
    return Norm(kind=norm_kind(norms[0].kind, bias), bias=bias, weight=weight), len(paths)


def norm_kind(name: str, bias: bool) -> Literal["rms", "layer"]:
    """Root mean square or layer norm, by the name of its class and whether it has a bias."""
    return "layer" if "rms" not in name.lower() and (bias or "layernorm" in name.lower()) else "rms"
