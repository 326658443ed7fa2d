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
    behind = [graph.by_place[one] for one in graph.behind(place) if one in graph.by_place]
    heads = heads_of(graph, place)
    outs = [one for one in behind if one.inputs == heads.heads * heads.deep and one.outputs == hidden]
    if len(outs) != 1:
        return None
    sources = [_products(graph, [source]) for source in graph.nodes[place].inputs[:3]]
    if not all(sources):
        return None
    return _softmax(graph, place, hidden, sources, outs[0]) or _latent(graph, place, hidden, sources, outs[0])


def _products(graph: LayerGraph, places: Sequence[int]) -> tuple[Multiplied, ...]:
    found = graph.before(places)
    return tuple(graph.by_place[one] for one in found) if all(one in graph.by_place for one in found) else ()


def _softmax(
    graph: LayerGraph, place: int, hidden: int, sources: list[tuple[Multiplied, ...]], out: Multiplied
) -> Found | None:
    heads, into = heads_of(graph, place), {one.node: one for source in sources for one in source}
    if any(one.inputs != hidden for one in into.values()):
        return None
    solved = _grouped(heads, sources)
    if solved is None:
        return None
    kv_heads, gate, shared = solved
    others = [gate for gate in _gates(graph, out, place) if gate.node not in into]
    if not gate and len(others) == 1 and others[0].outputs == heads.heads * heads.deep:
        gate, into = True, {**into, others[0].node: others[0]}
    query, key = graph.nodes[place].inputs[:2]
    between = graph.between([query, key])
    vectors = [graph.shapes[name] for at in sorted(between) for name in graph.nodes[at].weights]
    sizes = {shape[-1] for shape in vectors if shape}
    qk_norm = "head" if heads.wide in sizes else "full" if heads.heads * heads.wide in sizes else "none"
    turned = {graph.nodes[at].op for at in between} & TURNS
    sinks = any(len(graph.shapes[name]) == 1 for name in graph.nodes[place].weights)
    part = heads.attention(
        kv_heads, gate=gate, keys_as_values=shared, qk_norm=qk_norm, sinks=sinks,
        positions="rope" if turned else "none",
        qkv_bias=all(one.bias for one in into.values()), out_bias=bool(out.bias),
    )  # fmt: skip
    return Found(
        part=part, used=frozenset({*into, out.node}), enters=tuple(into), leaves=out.node, norms=between
    )  # fmt: skip


def _gates(graph: LayerGraph, out: Multiplied, place: int) -> tuple[Multiplied, ...]:
    """Products beside attention that its output is multiplied with."""
    found = graph.before(graph.nodes[out.node].inputs)
    return tuple(graph.by_place[one] for one in found if one in graph.by_place and one != place)


def _grouped(heads: Heads, sources: list[tuple[Multiplied, ...]]) -> tuple[int, bool, bool] | None:
    """Key-value heads, whether queries come with a gate, and whether values are keys; from widths of products."""
    query, key, value = ({one.node: one.outputs for one in source} for source in sources)
    wide, both = heads.heads * heads.wide, heads.wide + heads.deep
    if query.keys() == key.keys() == value.keys():
        rest = sum(query.values()) - wide
        for gate in (False, True):
            left = rest - gate * wide
            if left > 0 and left % both == 0 and heads.heads % (left // both) == 0:
                return left // both, gate, False
        return None
    gate = sum(query.values()) == 2 * wide
    if sum(query.values()) != wide * (1 + gate):
        return None
    keys = sum(key.values())
    if key.keys() == value.keys():
        shared = (keys == heads.keys * heads.wide and keys % both != 0) or keys == heads.keys * heads.wide
        size = heads.wide if shared else both
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
    if down.outputs != up.inputs + rope or not {one.node for one in key} <= {up.node, down.node} or nope < 1:
        return None
    used = {query[0].node, up.node, down.node, out.node}
    rank, biased = 0, [down, out]
    if query[0].inputs != hidden or _products(graph, graph.nodes[query[0].node].inputs):
        ahead = _products(graph, graph.nodes[query[0].node].inputs)
        if len(ahead) != 1 or ahead[0].inputs != hidden:
            return None
        rank, used, biased = query[0].inputs, used | {ahead[0].node}, [*biased, ahead[0]]
    part = LatentAttention(
        heads=heads.heads, q_rank=rank, kv_rank=up.inputs, nope_dim=nope, rope_dim=rope, v_dim=heads.deep,
        bias=all(one.bias for one in biased),
    )  # fmt: skip
    enters = tuple(one for one in used if graph.by_place[one].inputs == hidden and one != out.node)
    chain = graph.between(
        [*graph.nodes[place].inputs, *graph.nodes[up.node].inputs, *graph.nodes[query[0].node].inputs]
    )
    return Found(part=part, used=frozenset(used), enters=enters, leaves=out.node, norms=chain)
