"""Turn ops that no part of a model explains into a `Captured` part: products, scores, recurrences, streams.

product of a weight        its rows a token; the same weight used token by token is one product
product of activations     pairs of tokens where two of its sizes are the sequence, else rows a token
ops once a token           a recurrence: flops, and no bytes, since a fused scan keeps its state
other ops                  elements written where a chain of pointwise ops ends, as a compiler would fuse them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ridgeline.models.spec import Attention, Captured, Product
from ridgeline.runtime.capture.attention_part import heads_of
from ridgeline.runtime.capture.graph import GATHERS, MOVES, SOFTMAX, LayerGraph, Multiplied
from ridgeline.runtime.capture.recording import ATTEND, PRODUCTS


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
        saved=_saved_elements(graph, unused_products) / tokens,
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
            rows.append(
                Product(
                    label="activations",
                    inputs=product.inputs,
                    outputs=product.outputs,
                    rows=rows_per_group,
                    groups=product.groups,
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


def _saved_elements(graph: LayerGraph, left: Sequence[Multiplied]) -> float:
    """Elements that gradients read: what products multiply, each once."""
    read = {source for product in left for source in graph.nodes[product.node].inputs if source >= 0}
    return float(sum(graph.recording.nodes[source].elements for source in read))
