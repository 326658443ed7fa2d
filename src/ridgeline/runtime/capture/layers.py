"""Turn a recording into layers: which calls repeat, which ops belong to each, and what stands outside.

A layer is a call of a module out of a list (`nn.ModuleList`, or `nn.Sequential` of equal modules), the outermost one,
that multiplies with weights; without any, a call of one of the model's own parts that has parts. Calls that did the
same with parameters of the same shapes are one kind of layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from ridgeline.runtime.capture.graph import Shapes
from ridgeline.runtime.capture.recording import PRODUCTS, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One call of a layer: the ops in it, and the parameters under its path that it is the first to use."""

    path: str
    places: tuple[int, ...]
    params: tuple[str, ...]
    width: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """All layers in the order of their calls, and ops before, between and behind them."""

    calls: tuple[LayerCall, ...]
    outside: tuple[int, ...]


def lists_of(module: nn.Module) -> Mapping[str, int]:
    """Paths of lists of modules that have parts, with their lengths; sequences count where they repeat one."""
    lengths: dict[str, int] = {}
    for path, part in module.named_modules():
        if isinstance(part, nn.ModuleList) and any(next(child.children(), None) is not None for child in part):
            lengths[path] = len(part)
        elif isinstance(part, nn.Sequential) and len(part) > 1:
            kinds = Counter(type(child) for child in part)
            if len(kinds) == 1 and any(next(child.children(), None) is not None for child in part):
                lengths[path] = len(part)
    return lengths


def layers_of(recording: Recording, module: nn.Module, shapes: Shapes) -> Layers:
    """The layers of a recorded forward."""
    lists = lists_of(module)
    in_lists = _gather_layers(recording, shapes, lambda path: _in_list(path, lists))
    if in_lists.calls:
        return in_lists
    parts = _parts_of(module)
    return _gather_layers(recording, shapes, lambda path: path in parts)


def _parts_of(module: nn.Module) -> frozenset[str]:
    """Paths of a model's own parts that have parts themselves or recur; of its only part where it has one."""
    path, inner = "", module
    while len(children := list(inner.named_children())) == 1:
        path, inner = f"{path}{children[0][0]}.", children[0][1]
    return frozenset(
        f"{path}{name}"
        for name, child in inner.named_children()
        if next(child.children(), None) is not None or isinstance(child, nn.RNNBase)
    )


def _gather_layers(recording: Recording, shapes: Shapes, is_layer: Callable[[str], bool]) -> Layers:
    """Calls of modules whose path is a layer's, the outermost ones, that multiply with weights."""
    inside: dict[int, list[int]] = {}
    outside: list[int] = []
    for place, node in enumerate(recording.nodes):
        call = next((call for call in node.calls if is_layer(recording.calls[call].path)), None)
        if call is None:
            outside.append(place)
        else:
            inside.setdefault(call, []).append(place)
    weighty = {
        call
        for call, places in inside.items()
        if any(recording.nodes[at].op in PRODUCTS and recording.nodes[at].weights for at in places)
    }
    outside += [place for call, places in inside.items() if call not in weighty for place in places]
    claimed_params: set[str] = set()
    by_first_node = sorted(weighty, key=lambda one: inside[one][0])
    layers = tuple(_layer(recording, call, inside[call], shapes, claimed_params) for call in by_first_node)
    return Layers(calls=layers, outside=tuple(sorted(outside)))


def _in_list(path: str, lists: Mapping[str, int]) -> bool:
    parent, _, last = path.rpartition(".")
    return last.isdigit() and parent in lists


def _layer(recording: Recording, call: int, places: list[int], shapes: Shapes, claimed: set[str]) -> LayerCall:
    """A call with the parameters of its module, and those from elsewhere that it uses; each belongs to one layer."""
    path, out = recording.calls[call].path, recording.calls[call].out
    under = [name for name in shapes if name.startswith(f"{path}.")]
    weight_names = [name for place in places for name in recording.nodes[place].weights]
    params = tuple(name for name in dict.fromkeys((*under, *weight_names)) if name in shapes and name not in claimed)
    claimed.update(params)
    rows = 1
    for size in out[:-1]:
        rows *= size
    return LayerCall(path=path, places=tuple(places), params=params, width=out[-1] if out else 0, rows=rows)


def signature(recording: Recording, layer: LayerCall, shapes: Shapes) -> tuple[object, ...]:
    """What makes two layers one kind: the same ops on the same shapes, and parameters of the same shapes."""
    ops = tuple(
        (recording.nodes[at].op, recording.nodes[at].out, tuple(recording.nodes[at].facts.items()))
        for at in layer.places
        if not recording.nodes[at].view
    )
    owned_shapes = tuple(sorted((name.removeprefix(layer.path), shapes[name]) for name in layer.params))
    return layer.width, layer.rows, ops, owned_shapes
