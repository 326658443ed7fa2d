"""Turn one recorded attention with the products around it into the part of a model that it is, if it is a known one.

softmax   queries, keys and values from the hidden width, one product behind: `Attention`
latent    keys and values from a small latent, queries from another one or none: `LatentAttention`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.models.spec import Attention, LatentAttention
from ridgeline.runtime.capture.graph import LayerGraph, Multiplied

TURNS = frozenset({"neg", "cat", "view_as_complex", "complex", "sub", "stack", "index_copy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Sizes of a recorded attention."""

    heads: int
    keys: int
    wide: int
    deep: int
    window: int
    chunked: bool
    causal: bool

    def attention(self, kv_heads: int, **more: object) -> Attention:
        """The part with these sizes."""
        return Attention(
            heads=self.heads, kv_heads=kv_heads, head_dim=self.wide,
            v_head_dim=self.deep if self.deep != self.wide else 0, window=self.window, chunked=self.chunked,
            causal=self.causal,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A part, the products it explains, and where its results enter and leave."""

    part: Attention | LatentAttention
    used: frozenset[int]
    enters: tuple[int, ...]
    leaves: int
    norms: frozenset[int] = frozenset()


def heads_of(graph: LayerGraph, place: int) -> Heads:
    """Sizes of the attention at a place."""
    node = graph.nodes[place]
    query, key, value = node.shapes[:3]
    return Heads(
        heads=query[-3] if len(query) > 2 else 1,
        keys=key[-3] if len(key) > 2 else 1,
        wide=query[-1],
        deep=value[-1],
        window=int(node.facts.get("window") or 0),
        chunked=bool(node.facts.get("chunked")),
        causal=bool(node.facts.get("causal", True)),
    )


def attention_at(graph: LayerGraph, place: int, hidden: int) -> Found | None:
    """What the attention at a place is; None where its products say otherwise."""
    behind = [graph.by_place[node] for node in graph.behind(place) if node in graph.by_place]
    heads = heads_of(graph, place)
    outs = [product for product in behind if product.inputs == heads.heads * heads.deep and product.outputs == hidden]
    if len(outs) != 1:
        return None
    sources = [_products(graph, [source]) for source in graph.nodes[place].inputs[:3]]
    if not all(sources):
        return None
    return _softmax(graph, place, hidden, sources, outs[0]) or _latent(graph, place, hidden, sources, outs[0])


def _products(graph: LayerGraph, places: Sequence[int]) -> tuple[Multiplied, ...]:
    places_before = graph.before(places)
    return (
        tuple(graph.by_place[node] for node in places_before)
        if all(node in graph.by_place for node in places_before)
        else ()
    )


def _softmax(
    graph: LayerGraph, place: int, hidden: int, sources: list[tuple[Multiplied, ...]], out: Multiplied
) -> Found | None:
    heads, into = heads_of(graph, place), {product.node: product for source in sources for product in source}
    if any(product.inputs != hidden for product in into.values()):
        return None
    grouping = _solve_grouping(heads, sources)
    if grouping is None:
        return None
    kv_heads, gate, shared = grouping
    other_gates = [gate for gate in _gates(graph, out, place) if gate.node not in into]
    if not gate and len(other_gates) == 1 and other_gates[0].outputs == heads.heads * heads.deep:
        gate, into = True, {**into, other_gates[0].node: other_gates[0]}
    query, key = graph.nodes[place].inputs[:2]
    between = graph.between([query, key])
    vectors = [graph.shapes[name] for at in sorted(between) for name in graph.nodes[at].weights]
    sizes = {shape[-1] for shape in vectors if shape}
    qk_norm = "head" if heads.wide in sizes else "full" if heads.heads * heads.wide in sizes else "none"
    rotations = {graph.nodes[at].op for at in between} & TURNS
    sinks = any(len(graph.shapes[name]) == 1 for name in graph.nodes[place].weights)
    part = heads.attention(
        kv_heads, gate=gate, keys_as_values=shared, qk_norm=qk_norm, sinks=sinks,
        positions="rope" if rotations else "none",
        qkv_bias=all(product.bias for product in into.values()), out_bias=bool(out.bias),
    )  # fmt: skip
    return Found(
        part=part, used=frozenset({*into, out.node}), enters=tuple(into), leaves=out.node, norms=between
    )  # fmt: skip


def _gates(graph: LayerGraph, out: Multiplied, place: int) -> tuple[Multiplied, ...]:
    """Products beside attention that its output is multiplied with."""
    places_before = graph.before(graph.nodes[out.node].inputs)
    return tuple(graph.by_place[node] for node in places_before if node in graph.by_place and node != place)


def _solve_grouping(heads: Heads, sources: list[tuple[Multiplied, ...]]) -> tuple[int, bool, bool] | None:
    """Key-value heads, whether queries come with a gate, and whether values are keys; from widths of products."""
    query, key, value = ({product.node: product.outputs for product in source} for source in sources)
    wide, key_and_value = heads.heads * heads.wide, heads.wide + heads.deep
    if query.keys() == key.keys() == value.keys():
        surplus = sum(query.values()) - wide
        for gate in (False, True):
            shared_width = surplus - gate * wide
            if (
                shared_width > 0
                and shared_width % key_and_value == 0
                and heads.heads % (shared_width // key_and_value) == 0
            ):
                return shared_width // key_and_value, gate, False
        return None
    gate = sum(query.values()) == 2 * wide
    if sum(query.values()) != wide * (1 + gate):
        return None
    keys = sum(key.values())
    if key.keys() == value.keys():
        shared = (keys == heads.keys * heads.wide and keys % key_and_value != 0) or keys == heads.keys * heads.wide
        size = heads.wide if shared else key_and_value
        return (keys // size, gate, shared) if keys % size == 0 and heads.heads % (keys // size) == 0 else None
    if keys % heads.wide or sum(value.values()) * heads.wide != keys * heads.deep:
        return None
    kv_heads = keys // heads.wide
    return (kv_heads, gate, False) if heads.heads % kv_heads == 0 else None


def _latent(
    graph: LayerGraph, place: int, hidden: int, sources: list[tuple[Multiplied, ...]], out: Multiplied
) -> Found | None:
    """Keys and values expanded from one latent, which also holds the rotated part of a key."""
    heads, (query, key, value) = heads_of(graph, place), sources
    if len(query) != 1 or len(value) != 1 or query[0].outputs != heads.heads * heads.wide:
        return None
    up = value[0]
    downs = _products(graph, graph.nodes[up.node].inputs)
    if len(downs) != 1 or downs[0].inputs != hidden or up.outputs % heads.heads:
        return None
    down, nope = downs[0], up.outputs // heads.heads - heads.deep
    rope = heads.wide - nope
    if down.outputs != up.inputs + rope or not {product.node for product in key} <= {up.node, down.node} or nope < 1:
        return None
    used = {query[0].node, up.node, down.node, out.node}
    rank, biased_products = 0, [down, out]
    if query[0].inputs != hidden or _products(graph, graph.nodes[query[0].node].inputs):
        ahead = _products(graph, graph.nodes[query[0].node].inputs)
        if len(ahead) != 1 or ahead[0].inputs != hidden:
            return None
        rank, used, biased_products = query[0].inputs, used | {ahead[0].node}, [*biased_products, ahead[0]]
    part = LatentAttention(
        heads=heads.heads, q_rank=rank, kv_rank=up.inputs, nope_dim=nope, rope_dim=rope, v_dim=heads.deep,
        bias=all(product.bias for product in biased_products),
    )  # fmt: skip
    enters = tuple(node for node in used if graph.by_place[node].inputs == hidden and node != out.node)
    chain = graph.between(
        [*graph.nodes[place].inputs, *graph.nodes[up.node].inputs, *graph.nodes[query[0].node].inputs]
    )
    return Found(part=part, used=frozenset(used), enters=enters, leaves=out.node, norms=chain)
