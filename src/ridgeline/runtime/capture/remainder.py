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
    left = [product for product in graph.products if product.node not in used]
    looped = _looped(graph, tokens)
    products = tuple(_weighted(left, tokens))
    pairs, rows, scanned = _unweighted(left, tokens, looped)
    scores = tuple(_scores(graph, place) for place in graph.attentions if place not in attended)
    written = [place for place in _written(graph) if place not in looped] if streams else []
    scan = sum(graph.nodes[place].elements for place in looped if graph.nodes[place].op not in PRODUCTS) / tokens
    mixing = bool(scores or pairs or rows or scanned or scan or any(one.depthwise for one in left))
    if not (products or rows or mixing or params):
        return None
    return Captured(
        products=(*products, *rows),
        scores=scores,
        pair_flops=pairs,
        scan_flops=scan + scanned,
        streams=sum(graph.nodes[place].elements for place in written) / tokens,
        kernels=float(len(written)),
        params=params,
        saved=_saved(graph, left) / tokens,
        cached=sum(score.kv_heads * (score.head_dim + score.value_dim) for score in scores),
        mixes=mixing,
    )


def _weighted(left: Sequence[Multiplied], tokens: int) -> Iterable[Product]:
    """Products with a weight, those of one weight together, equal ones as groups of one."""
    merged: dict[str, list[Multiplied]] = {}
    for one in left:
        if one.weight:
            merged.setdefault(one.weight, []).append(one)
    found: Counter[tuple[int, int, float, int, str]] = Counter()
    for name, own in merged.items():
        first = own[0]
        rows = sum(one.rows for one in own) / first.groups / tokens
        found[(first.inputs, first.outputs, rows, first.groups, name.rpartition(".")[0].rpartition(".")[2])] += 1
    for (inputs, outputs, rows, groups, label), times in found.items():
        yield Product(label=label or "product", inputs=inputs, outputs=outputs, rows=rows, groups=groups * times)


def _unweighted(
    left: Sequence[Multiplied], tokens: int, looped: Collection[int]
) -> tuple[float, tuple[Product, ...], float]:
    """Flops a pair of tokens, products that grow with tokens, and flops a token inside recurrences."""
    pairs = scanned = 0.0
    rows: list[Product] = []
    for one in left:
        if one.weight:
            continue
        if one.node in looped:
            scanned += one.flops / tokens
            continue
        sizes = (one.groups, one.rows // one.groups, one.inputs, one.outputs)
        if sum(size % tokens == 0 for size in sizes) >= 2:
            pairs += one.flops / tokens**2
        else:
            each = one.rows / one.groups / tokens
            rows.append(
                Product(
                    label="activations", inputs=one.inputs, outputs=one.outputs, rows=each, groups=one.groups,
                    weights=False,
                )
            )  # fmt: skip
    return pairs, tuple(rows), scanned


def _scores(graph: LayerGraph, place: int) -> Attention:
    heads = heads_of(graph, place)
    kv_heads = heads.keys if heads.heads % heads.keys == 0 else heads.heads
    return heads.attention(kv_heads, positions="none")


def _looped(graph: LayerGraph, tokens: int) -> frozenset[int]:
    """Ops that ran once a token: as many equal ones in one module as there are tokens."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, node in graph.nodes.items():
        if not node.view:
            alike.setdefault((node.op, node.out, node.shapes, node.calls[-1:]), []).append(place)
    return frozenset(place for places in alike.values() if len(places) >= max(8, tokens - 1) for place in places)


def _written(graph: LayerGraph) -> Iterable[int]:
    """Ops whose results reach memory where pointwise chains are fused: several readers, another module, a product."""
    for place, node in graph.nodes.items():
        if node.view or node.op in PRODUCTS or node.op in MOVES or node.op in GATHERS or node.op == ATTEND:
            continue
        readers = graph.readers.get(place, ())
        same = [at for at in readers if graph.nodes[at].calls == node.calls and graph.nodes[at].op not in PRODUCTS]
        if len(readers) != 1 or not same or node.op in SOFTMAX:
            yield place


def _saved(graph: LayerGraph, left: Sequence[Multiplied]) -> float:
    """Elements that gradients read: what products multiply, each once."""
    read = {source for one in left for source in graph.nodes[one.node].inputs if source >= 0}
    return float(sum(graph.recording.nodes[source].elements for source in read))
