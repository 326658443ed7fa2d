"""Turn what a recorded forward makes of images alone into a `Vision`: a stack of layers, and what stands around it.

A tower is every layer that no token id reaches. Layers that are all the same are a stack of known parts where they have
them; towers of other layers are one layer, captured op by op, whose products and scores are those of them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ridgeline.models.params import block_params
from ridgeline.models.spec import Attention, Block, Captured, Vision
from ridgeline.runtime.capture.blocks import Within, block_of
from ridgeline.runtime.capture.graph import LayerGraph, Shapes
from ridgeline.runtime.capture.layers import LayerCall, Layers
from ridgeline.runtime.capture.recording import Recording
from ridgeline.runtime.capture.remainder import remainder

BESIDE = 0.1  # of a tower's flops: layers beside its stack up to which they are taken for a projector


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An image that a module was called with: pixels of its side, and of a patch where the config says so."""

    image: int
    patch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Layers and ops of text, and those that images alone lead to."""

    text: Layers
    tower: Layers


def split(recording: Recording, layers: Layers) -> Split:
    """A recording's layers and outside ops, by whether token ids reach them."""
    ids, media_inputs = (
        {place for place, input_kind in recording.given.items() if input_kind == kind} for kind in ("text", "image")
    )
    if not media_inputs or not ids:
        return Split(text=layers, tower=Layers(calls=(), outside=()))
    by_text, by_others = reachable_nodes(recording, ids), reachable_nodes(recording, media_inputs)
    media_towers = tuple(
        call for call in layers.calls if not by_text.intersection(call.places) and by_others.intersection(call.places)
    )
    if len(media_towers) == len(layers.calls):
        return Split(text=layers, tower=Layers(calls=(), outside=()))
    tower_nodes = (
        {place for place in layers.outside if place in by_others and place not in by_text} if media_towers else set()
    )
    text = Layers(
        calls=tuple(call for call in layers.calls if call not in media_towers),
        outside=tuple(place for place in layers.outside if place not in tower_nodes),
    )
    return Split(text=text, tower=Layers(calls=media_towers, outside=tuple(sorted(tower_nodes))))


def reachable_nodes(recording: Recording, seeds: Collection[int]) -> frozenset[int]:
    """Ops that results of the seeds lead to, and the seeds."""
    nodes = set(seeds)
    for place, node in enumerate(recording.nodes):
        if any(source in nodes for source in node.inputs):
            nodes.add(place)
    return frozenset(nodes)


def vision_of(within: Within, tower: Layers, shown: Shown, params: int) -> Vision:
    """The image encoder that a tower is: `params` are all of its parameters."""
    width, rows = common(tower.calls)
    inner = replace(within, hidden=width, tokens=rows)
    blocks = _unify_blocks([block_of(inner, call) for call in tower.calls], width)
    block, layers = Counter(blocks).most_common(1)[0]
    other_calls = [call for call, call_block in zip(tower.calls, blocks, strict=True) if call_block != block]
    other_flops = sum(_flops(inner, call.places) for call in other_calls)
    total_flops = other_flops + sum(_flops(inner, call.places) for call in tower.calls if call not in other_calls)
    if other_flops > BESIDE * total_flops:
        block, layers, other_calls = _merge_calls(inner, tower.calls), 1, []
    block_params_ = layers * block_params(block, width)
    if block_params_ > params:
        block, layers, other_calls = _merge_calls(inner, tower.calls), 1, []
        block_params_ = block_params(block, width)
    behind = _behind(inner, tower, other_calls)
    projector = min(params - block_params_, sum(prod(within.shapes[name]) for name in behind if name in within.shapes))
    side = max(1, round(rows**0.5))
    patch = shown.patch if shown.patch and abs((shown.image // shown.patch) ** 2 - rows) <= max(8, rows // 20) else 0
    return Vision(
        hidden=width, block=block, layers=layers, image=shown.image, patch=patch or max(1, shown.image // side),
        tokens=_tokens(within.recording, tower, behind, rows), projector_params=projector,
        other_params=params - block_params_ - projector,
    )  # fmt: skip


def _unify_blocks(blocks: Sequence[Block], width: int) -> list[Block]:
    """Blocks with those that differ in where a bias was seen alone as one: a first layer may add it in another op."""
    best: dict[tuple[Block, int], Block] = {}
    keys = [(_without_biases(block), block_params(block, width)) for block in blocks]
    for key, block in zip(keys, blocks, strict=True):
        best[key] = min(best.get(key, block), block, key=lambda one: one.extra)
    return [best[key] for key in keys]


def _without_biases(block: Block) -> Block:
    mixer = block.mixer
    mixer = replace(mixer, qkv_bias=False, out_bias=False) if isinstance(mixer, Attention) else mixer
    return replace(block, mixer=mixer, extra=0)


def owned_params(recording: Recording, places: Iterable[int], shapes: Shapes, taken: Collection[str]) -> set[str]:
    """Parameters that ops use, and those beside them in the same part of the model that nothing else uses."""
    used = {name for place in places for name in recording.nodes[place].weights if name in shapes} - set(taken)
    parts = {_part(name) for name in used} - {_part(name) for name in taken}
    return used | {name for name in shapes if name not in taken and _part(name) in parts}


def common(calls: Sequence[LayerCall]) -> tuple[int, int]:
    """The width and the tokens that most layers have, weighed by their parameters."""
    weights: Counter[tuple[int, int]] = Counter()
    for order, call in enumerate(calls):
        weights[(call.width, call.rows)] += 1 + len(call.params) + order // len(calls)
    return weights.most_common(1)[0][0]


def add_captured(one: Captured | None, other: Captured | None) -> Captured | None:
    """Two captured parts as one."""
    if one is None or other is None:
        return one or other
    names = ("products", "scores", "pair_flops", "scan_flops", "streams", "kernels", "params", "saved", "cached")
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    return Captured(**sums, mixes=one.mixes or other.mixes)


def _part(name: str) -> str:
    """The part of a model that a parameter belongs to: `model.visual`, `vision_model`."""
    first, *further_parts = name.split(".")
    return (
        f"{first}.{further_parts[0]}"
        if first in ("model", "thinker", "transformer", "base_model") and further_parts
        else first
    )


def _merge_calls(within: Within, calls: Sequence[LayerCall]) -> Block:
    """Layers of several kinds as one, op by op."""
    merged: Captured | None = None
    for call in calls:
        total = sum(prod(within.shapes[name]) for name in call.params)
        merged = add_captured(merged, remainder(_graph(within, call.places), within.tokens, (), total, streams=True))
    return Block(mixer=None, ffn=None, norms=0, captured=merged)


def _graph(within: Within, places: Sequence[int]) -> LayerGraph:
    return LayerGraph(within.recording, places, within.shapes)


def _flops(within: Within, places: Sequence[int]) -> float:
    return sum(product.flops for product in _graph(within, places).products)


def _behind(within: Within, tower: Layers, rest: Sequence[LayerCall]) -> dict[str, None]:
    """Parameters of products behind the stack, in order: a projector's."""
    inside = {place for call in rest for place in call.places}
    stack = [place for call in tower.calls if call not in rest for place in call.places]
    last = max(stack, default=-1)
    places = sorted(place for place in {*inside, *tower.outside} if place > last)
    graph = _graph(within, places)
    return dict.fromkeys(name for product in graph.products for name in (product.weight, product.bias) if name)


def _tokens(recording: Recording, tower: Layers, behind: Mapping[str, None], rows: int) -> int:
    """Tokens that an image becomes: rows of the last product behind the stack."""
    places = sorted({*tower.outside, *(place for call in tower.calls for place in call.places)})
    ends = [recording.nodes[place] for place in places if set(recording.nodes[place].weights) & set(behind)]
    token_nodes = [node for node in ends if prod(node.out[:-1]) > 1]  # a pooler makes one row and no tokens
    return max(1, prod(token_nodes[-1].out[:-1])) if token_nodes else rows
