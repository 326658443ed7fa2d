"""Turn one recorded layer into a Block: known parts where products and attention say so, a captured rest.

product of a weight        its rows a token; the same weight used token by token is one product
product of activations     pairs of tokens where two of its sizes are the sequence, else rows a token
ops once a token           a recurrence: flops, and no bytes, since a fused scan keeps its state
other ops                  elements written where a chain of pointwise ops ends, as a compiler would fuse them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from torch import nn

from ridgeline.models.params import block_params
from ridgeline.models.spec import Attention, Block, Captured, Ffn, Mixer, Norm, Product
from ridgeline.runtime.capture.graph import GATHERS, MOVES, SOFTMAX, LayerCall, LayerGraph, Multiplied, Shapes
from ridgeline.runtime.capture.parts import attention_at, experts, heads_of, mlps, recurrent_in
from ridgeline.runtime.capture.recording import ATTEND, PRODUCTS, Recording


def remainder(
    graph: LayerGraph, tokens: int, used: Collection[int], params: int, *, streams: bool, attended: Collection[int] = ()
) -> Captured | None:
    """What is left beside `used` products and `attended` attentions; None where that is nothing.

    params    parameters of what is left; streams: whether pointwise ops count, which known parts have their own of
    """
    unused_products = [product for product in graph.products if product.node not in used]
    loop_nodes = _loop_nodes(graph, tokens)
    products = tuple(_weighted_products(unused_products, tokens))
    pairs, rows, scan_flops = _unweighted_products(unused_products, tokens, loop_nodes)
    scores = tuple(_scores(graph, place) for place in graph.attentions if place not in attended)
    written = [place for place in _written(graph) if place not in loop_nodes] if streams else []
    scan = sum(graph.nodes[place].elements for place in loop_nodes if graph.nodes[place].op not in PRODUCTS) / tokens
    read = {source for product in unused_products for source in graph.nodes[product.node].inputs if source >= 0}
    mixing = bool(
        scores or pairs or rows or scan_flops or scan or any(product.depthwise for product in unused_products)
    )
    if not (products or rows or mixing or params):
        return None
    return Captured(
        products=(*products, *rows),
        scores=scores,
        pair_flops=pairs,
        scan_flops=scan + scan_flops,
        streams=sum(graph.nodes[place].elements for place in written) / tokens,
        kernels=float(len(written)),
        params=params,
        saved=sum(graph.recording.nodes[source].elements for source in read) / tokens,
        cached=sum(score.kv_heads * (score.head_dim + score.value_dim) for score in scores),
        mixes=mixing,
    )


def _weighted_products(left: Sequence[Multiplied], tokens: int) -> Iterable[Product]:
    """Products with a weight, those of one weight together, equal ones as groups of one."""
    products_of_weight: dict[str, list[Multiplied]] = {}
    for product in left:
        if product.weight:
            products_of_weight.setdefault(product.weight, []).append(product)
    products: Counter[tuple[int, int, float, int, str]] = Counter()
    for name, same_weight in products_of_weight.items():
        first = same_weight[0]
        rows = sum(product.rows for product in same_weight) / first.groups / tokens
        products[(first.inputs, first.outputs, rows, first.groups, name.rpartition(".")[0].rpartition(".")[2])] += 1
    for (inputs, outputs, rows, groups, label), times in products.items():
        yield Product(label=label or "product", inputs=inputs, outputs=outputs, rows=rows, groups=groups * times)


def _unweighted_products(
    left: Sequence[Multiplied], tokens: int, looped: Collection[int]
) -> tuple[float, tuple[Product, ...], float]:
    """Flops a pair of tokens, products that grow with tokens, and flops a token inside recurrences."""
    pairs = scan_flops = 0.0
    rows: list[Product] = []
    for product in left:
        if product.weight:
            continue
        if product.node in looped:
            scan_flops += product.flops / tokens
            continue
        sizes = (product.groups, product.rows // product.groups, product.inputs, product.outputs)
        if sum(size % tokens == 0 for size in sizes) >= 2:
            pairs += product.flops / tokens**2
        else:
            rows_per_group = product.rows / product.groups / tokens
            inputs, outputs, groups = product.inputs, product.outputs, product.groups
            rows.append(
                Product(
                    label="activations",
                    inputs=inputs,
                    outputs=outputs,
                    rows=rows_per_group,
                    groups=groups,
                    weights=False,
                )
            )
    return pairs, tuple(rows), scan_flops


def _scores(graph: LayerGraph, place: int) -> Attention:
    heads = heads_of(graph, place)
    kv_heads = heads.keys if heads.heads % heads.keys == 0 else heads.heads
    return heads.attention(kv_heads, positions="none")


def _loop_nodes(graph: LayerGraph, tokens: int) -> frozenset[int]:
    """Ops that ran once a token: as many equal ones in one module as there are tokens."""
    nodes_by_shape: dict[tuple[object, ...], list[int]] = {}
    for place, node in graph.nodes.items():
        if not node.view:
            nodes_by_shape.setdefault((node.op, node.out, node.shapes, node.calls[-1:]), []).append(place)
    return frozenset(
        place for places in nodes_by_shape.values() if len(places) >= max(8, tokens - 1) for place in places
    )


def _written(graph: LayerGraph) -> Iterable[int]:
    """Ops whose results reach memory where pointwise chains are fused: several readers, another module, a product."""
    for place, node in graph.nodes.items():
        if node.view or node.op in PRODUCTS or node.op in MOVES or node.op in GATHERS or node.op == ATTEND:
            continue
        readers = graph.readers.get(place, ())
        same = [at for at in readers if graph.nodes[at].calls == node.calls and graph.nodes[at].op not in PRODUCTS]
        if len(readers) != 1 or not same or node.op in SOFTMAX:
            yield place


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
        parts.beside, path = state
        inside = {place for place in graph.nodes if f"{graph.path(place)}.".startswith(f"{path}.")}
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
    full_block = Block(mixer=parts.mixer, beside=parts.beside, ffn=parts.ffn, norm=norm, norms=norms, parallel=parallel)
    block = _within_its_parameters(full_block, within.hidden, total)
    if block is None:
        return None
    missing_params = total - block_params(block, within.hidden)
    unused_names = {
        name for product in graph.products if product.node not in parts.used for name in (product.weight, product.bias)
    }
    owned_params = sum(prod(within.shapes[name]) for name in unused_names if name in layer.params)
    taken_params = min(owned_params, missing_params)
    outside = _without(graph, parts.ignored - parts.attended)
    captured_part = remainder(outside, within.tokens, parts.used, taken_params, streams=False, attended=parts.attended)
    if captured_part is None or not (captured_part.products or captured_part.mixes):
        captured_part, taken_params = None, 0
    return replace(block, captured=captured_part, extra=missing_params - taken_params)


def _without(graph: LayerGraph, ignored: set[int]) -> LayerGraph:
    graph_without = LayerGraph(graph.recording, (), graph.shapes)
    graph_without.nodes = {place: node for place, node in graph.nodes.items() if place not in ignored}
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
    ignored_nodes = [graph.nodes[place] for place in parts.ignored if place in graph.nodes]
    inner = {node.calls[-1] for node in ignored_nodes if node.calls}
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
