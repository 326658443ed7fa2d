"""Turn a recording of a forward into a ModelSpec: layers as blocks, the two ends, the tower that images go through.

Products before the layers run with the first one, those behind with the last: that is where a pipeline puts them. A
tower is every layer that no token id reaches. Layers that are all the same are a stack of known parts where they have
them; towers of other layers are one layer, captured op by op, whose products and scores are those of them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.params import block_params, count
from ridgeline.models.spec import (
    Attention,
    Block,
    Captured,
    CaptureRecord,
    Embedding,
    Head,
    ModelSpec,
    Norm,
    Vision,
    from_layers,
)
from ridgeline.runtime.capture.blocks import Within, block_of, norm_kind, remainder
from ridgeline.runtime.capture.graph import (
    LayerCall,
    LayerGraph,
    Layers,
    Multiplied,
    Shapes,
    layers_of,
    lists_of,
    signature,
)
from ridgeline.runtime.capture.recording import PRODUCTS, Recording


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
    ends = [place for layer in layers.calls for place in (layer.places[0], layer.places[-1])]
    first, last = (min(ends), max(ends) + 1) if ends else (0, len(recording.nodes))
    graph = LayerGraph(recording, layers.outside, shapes)
    layer_params = {name for layer in layers.calls for name in layer.params}
    rows = _embedding_rows(graph, shapes, layer_params)
    lookups = [node for node in graph.nodes.values() if node.op == "embedding" and node.inputs[-1] >= 0]
    end_params = {name for node in lookups for name in node.weights}
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
        norm=_end_norm(recording, layers, shapes, hidden, range(first)),
        head_bias=bool(head and head.bias and table),
    )
    norm = _end_norm(recording, layers, shapes, hidden, range(last, len(recording.nodes)))
    sides = [
        _remaining_ends(recording, [place for place in layers.outside if (place < last) is ahead], shapes, tokens, used)
        for ahead in (True, False)
    ]
    return Ends(
        vocab=vocab, embedding=embedding, norm=norm, before=sides[0], behind=sides[1], headless=head is None
    )  # fmt: skip


def _embedding_rows(graph: LayerGraph, shapes: Shapes, owned: set[str]) -> list[str]:
    """Parameters that rows are looked up in, outside of layers."""
    names = [
        name for node in graph.nodes.values() if node.op == "embedding" for name in node.weights if name in shapes
    ]  # fmt: skip
    return [name for name in dict.fromkeys(names) if len(shapes[name]) == 2 and name not in owned]


def _projections(
    graph: LayerGraph, width: int, hidden: int, span: tuple[int, int], used: set[int]
) -> tuple[Multiplied, ...]:
    """The two products that join rows of another width with the layers."""
    before, behind = (
        [product for product in graph.products if (product.inputs, product.outputs) == sizes]
        for sizes in ((width, hidden), (hidden, width))
    )
    into = [product for product in before if product.node < span[0]]
    out = [product for product in behind if product.node >= span[1]]
    pair = (*into[:1], *(product for product in out[:1] if product.node not in used))
    return pair if len(pair) == 2 else ()


def _end_norm(
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


BESIDE = 0.1  # of a tower's flops: layers beside its stack up to which they are taken for a projector


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An image that a module was called with: pixels of its side, and of a patch where the config says so."""

    image: int
    patch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSplit:
    """Layers and ops of text, and those that images alone lead to."""

    text: Layers
    tower: Layers


def split(recording: Recording, layers: Layers) -> LayerSplit:
    """A recording's layers and outside ops, by whether token ids reach them."""
    ids, media_inputs = (
        {place for place, input_kind in recording.given.items() if input_kind == kind} for kind in ("text", "image")
    )
    if not media_inputs or not ids:
        return LayerSplit(text=layers, tower=Layers(calls=(), outside=()))
    by_text, by_others = reachable_nodes(recording, ids), reachable_nodes(recording, media_inputs)
    media_towers = tuple(
        call for call in layers.calls if not by_text.intersection(call.places) and by_others.intersection(call.places)
    )
    if len(media_towers) == len(layers.calls):
        return LayerSplit(text=layers, tower=Layers(calls=(), outside=()))
    tower_nodes = (
        {place for place in layers.outside if place in by_others and place not in by_text} if media_towers else set()
    )
    text = Layers(
        calls=tuple(call for call in layers.calls if call not in media_towers),
        outside=tuple(place for place in layers.outside if place not in tower_nodes),
    )
    return LayerSplit(text=text, tower=Layers(calls=media_towers, outside=tuple(sorted(tower_nodes))))


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
    flops = {call: sum(product.flops for product in _graph(inner, call.places).products) for call in tower.calls}
    if sum(flops[call] for call in other_calls) > BESIDE * sum(flops.values()):
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
    if one is None or other is None:
        return one or other
    names = ("products", "scores", "pair_flops", "scan_flops", "streams", "kernels", "params", "saved", "cached")
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    return Captured(**sums, mixes=one.mixes or other.mixes)


def _part(name: str) -> str:
    """The part of a model that a parameter belongs to: `model.visual`, `vision_model`."""
    first, *further_parts = name.split(".")
    is_wrapper = first in ("model", "thinker", "transformer", "base_model") and further_parts
    return f"{first}.{further_parts[0]}" if is_wrapper else first


def _merge_calls(within: Within, calls: Sequence[LayerCall]) -> Block:
    """Layers of several kinds as one, op by op."""
    merged: Captured | None = None
    for call in calls:
        total = sum(prod(within.shapes[name]) for name in call.params)
        merged = add_captured(merged, remainder(_graph(within, call.places), within.tokens, (), total, streams=True))
    return Block(mixer=None, ffn=None, norms=0, captured=merged)


def _graph(within: Within, places: Sequence[int]) -> LayerGraph:
    return LayerGraph(within.recording, places, within.shapes)


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


SHOWN = 3  # modules that a sentence names


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A forward of the image encoder alone, where text does without it; and the image."""

    shown: Shown
    recording: Recording | None = None


def spec_of(
    recording: Recording, module: nn.Module, *, id: str, by: str, tokens: tuple[int, ...], seen: Seen | None = None
) -> ModelSpec:  # fmt: skip
    """The model that a recorded forward is, with the tower that images went through."""
    shapes = _shapes(module)
    layers = layers_of(recording, module, shapes)
    layers = layers if layers.calls else _one_layer(recording, shapes)
    parts = split(recording, layers)
    layers = parts.text
    hidden, rows = common(layers.calls)
    within = Within(
        recording=recording, shapes=shapes, hidden=hidden, tokens=rows, modules=dict(module.named_modules()),
        lists=lists_of(module),
    )  # fmt: skip
    blocks = _blocks(within, layers.calls)
    ends = ends_of(recording, layers, shapes, hidden, rows)
    spec = _join_model(id, hidden, ends, blocks, CaptureRecord(by=by, tokens=tokens))
    spec = replace(spec, vision=_vision(within, module, parts.tower, layers, seen))
    spec = _count_parameters(spec, sum(prod(shape) for shape in shapes.values()))
    recordings = [recording, *([seen.recording] if seen and seen.recording and spec.vision else [])]
    untold = tuple(_untold(recordings, spec, ends, shapes))
    return replace(spec, capture=CaptureRecord(by=by, tokens=tokens, untold=untold))


def _shapes(module: nn.Module) -> Shapes:
    """All parameters, frozen ones too; what is computed and never learned is none: tables of positions, counters."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path, part in module.named_modules():
        own_parameters = dict(part.named_parameters(recurse=False))
        matrix = any(weight.dim() > 1 for weight in own_parameters.values()) or "norm" in type(part).__name__.lower()
        for name, weight in own_parameters.items():
            full = f"{path}.{name}" if path else name
            if weight.requires_grad or (matrix and "pos" not in full.lower()):
                shapes[full] = tuple(weight.shape)
    parameters = dict(module.named_parameters())  # one that modules share has one name
    return {name: shape for name, shape in shapes.items() if name in parameters} or {
        name: tuple(weight.shape) for name, weight in parameters.items()
    }


def _one_layer(recording: Recording, shapes: Shapes) -> Layers:
    last = max((node.out for node in recording.nodes if node.out), key=prod, default=())
    if not last or not any(node.op in PRODUCTS and node.weights for node in recording.nodes):
        given_text, expected_text = "a forward without products", "a module that multiplies its inputs with weights"
        raise InputError(Problem(path="module", given=given_text, expected=expected_text))
    places = tuple(range(len(recording.nodes)))
    layer = LayerCall(path="", places=places, params=tuple(shapes), width=last[-1], rows=max(1, prod(last[:-1])))
    return Layers(calls=(layer,), outside=())


def _vision(within: Within, module: nn.Module, tower: Layers, text: Layers, seen: Seen | None) -> Vision | None:
    """The image encoder: what the forward ran of images alone, or another forward of it."""
    if seen is None:
        return None
    places = (*text.outside, *(place for call in text.calls for place in call.places))
    tower_weights = {name for place in places for name in within.recording.nodes[place].weights}
    if not tower.calls and seen.recording is not None:
        within = replace(within, recording=seen.recording)
        tower = layers_of(seen.recording, module, within.shapes)
    if not tower.calls:
        return None
    ran = (*tower.outside, *(place for call in tower.calls for place in call.places))
    names = owned_params(within.recording, ran, within.shapes, tower_weights)
    return vision_of(within, tower, seen.shown, sum(prod(within.shapes[name]) for name in names))


def _blocks(within: Within, calls: Iterable[LayerCall]) -> list[Block]:
    block_by_signature: dict[tuple[object, ...], Block] = {}
    blocks = []
    for layer in calls:
        key = signature(within.recording, layer, within.shapes)
        if key not in block_by_signature:
            block_by_signature[key] = block_of(within, layer)
        blocks.append(block_by_signature[key])
    return blocks


def _join_model(id: str, hidden: int, ends: Ends, blocks: list[Block], record: CaptureRecord) -> ModelSpec:
    blocks = list(blocks)
    blocks[0] = replace(blocks[0], captured=add_captured(ends.before, blocks[0].captured))
    blocks[-1] = replace(blocks[-1], captured=add_captured(blocks[-1].captured, ends.behind))
    if ends.embedding.positions:
        blocks = [_with_learned_bias(block) for block in blocks]
    kinds, order = from_layers(blocks)
    return ModelSpec(
        id=id, name=id, hidden=hidden, vocab=ends.vocab, embedding=ends.embedding, blocks=kinds, order=order,
        norm=ends.norm, capture=record, source=f"captured by {record.by}",
        head=Head(kind="none") if ends.headless else None,
    )  # fmt: skip


def _with_learned_bias(block: Block) -> Block:
    """Queries and keys that nothing turns take their positions from the rows of a table."""
    mixer = block.mixer
    if not isinstance(mixer, Attention) or mixer.positions != "none":
        return block
    return replace(block, mixer=replace(mixer, positions="learned"))


def _count_parameters(spec: ModelSpec, total: int) -> ModelSpec:
    """The spec with exactly the module's parameters: what no part holds is extra of the first layer.

    A vocabulary of one stands for none; what its row would hold is taken from the layers.
    """
    missing_params = total - count(spec).total
    if missing_params < 0:
        spec = replace(spec, vocab=1, embedding=Embedding(tied=True), norm=None)
        missing_params = total - count(spec).total
    layers = [spec.layer(place) for place in range(spec.layers)]
    if missing_params >= 0:
        layers[0] = replace(layers[0], extra=layers[0].extra + missing_params)
    for place, block in enumerate(layers):
        if missing_params < 0:
            layers[place] = _less(block, -missing_params, spec.hidden)
            missing_params += block_params(block, spec.hidden) - block_params(layers[place], spec.hidden)
    if missing_params < 0:
        given_text = f"{total - missing_params} parameters in its parts"
        raise InputError(Problem(path="module", given=given_text, expected=f"the {total} that it has"))
    blocks, order = from_layers(layers)
    return replace(spec, blocks=blocks, order=order)


def _less(block: Block, many: int, hidden: int) -> Block:
    """A block with so many fewer parameters beside its parts, or as many as there are; a norm's too if need be."""
    if block.extra < many and block.captured is None and block.norms and block.norm.params(hidden):
        block = replace(block, norms=block.norms - 1, extra=block.extra + block.norm.params(hidden))
    fewer = min(block.extra, many)
    captured_part = block.captured
    if captured_part is not None and many > fewer:
        captured_part = replace(captured_part, params=captured_part.params - min(captured_part.params, many - fewer))
    return replace(block, extra=block.extra - fewer, captured=captured_part)


def _untold(recordings: Sequence[Recording], spec: ModelSpec, ends: Ends, shapes: Shapes) -> Iterable[str]:
    yield from sorted(set().union(*(recording.guessed for recording in recordings)))
    used = {name for recording in recordings for node in recording.nodes for name in node.weights}
    unused_sizes: Counter[str] = Counter()
    for name, shape in shapes.items():
        if name not in used:
            unused_sizes[".".join(name.split(".")[:2])] += prod(shape)
    idle = [(path, size) for path, size in unused_sizes.most_common(SHOWN) if size > spec.hidden]
    if idle and sum(unused_sizes.values()) > 0.001 * sum(prod(shape) for shape in shapes.values()):
        unused_text = ", ".join(f"{path} ({size} parameters)" for path, size in idle)
        yield f"modules that did not run with these inputs, counted and not priced: {unused_text}"
    if ends.headless:
        yield "what stands behind the layers has no output of the vocabulary: none is priced as a head"
    mixing = sum(times for block, times in spec.counts() if block.captured and block.captured.mixes)
    if mixing:
        yield f"how ranks would share {mixing} of {spec.layers} layers, whose tokens meet in a way no known part has"
    if any(node.facts.get("unfused") for recording in recordings for node in recording.nodes):
        yield "windows of attention, and whether it sees both ways, where it ran unfused and a mask cuts it"
