"""Turn a recording of a module's forward into a ModelSpec: layers as blocks, the two ends, what could not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.params import block_params, count
from ridgeline.models.spec import (
    Attention,
    Block,
    CaptureRecord,
    Embedding,
    Head,
    ModelSpec,
    Vision,
    from_layers,
)
from ridgeline.runtime.capture.blocks import Within, block_of
from ridgeline.runtime.capture.ends import Ends, ends_of
from ridgeline.runtime.capture.graph import Shapes
from ridgeline.runtime.capture.layers import LayerCall, Layers, layers_of, lists_of, signature
from ridgeline.runtime.capture.recording import PRODUCTS, Recording
from ridgeline.runtime.capture.towers import Shown, add_captured, common, owned_params, split, vision_of

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
    """A module without repeated parts is one layer."""
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
    """Every layer's block; equal ones are read once."""
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
        layers[place] = _less(block, -missing_params, spec.hidden) if missing_params < 0 else block
        missing_params += (
            block_params(block, spec.hidden) - block_params(layers[place], spec.hidden) if missing_params < 0 else 0
        )
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
    """What recordings leave open, a sentence each."""
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
