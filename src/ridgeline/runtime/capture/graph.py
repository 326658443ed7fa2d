"""Turn a recording into layers, and the ops of one layer into a graph of its matrix products and attentions.

A layer is a call of a module out of a list (`nn.ModuleList`, or `nn.Sequential` of equal modules), the outermost one,
that multiplies with weights; without any, a call of one of the model's own parts that has parts. Calls that did the
same with parameters of the same shapes are one kind of layer.

A product is told by its numbers: rows that it multiplies, of `inputs` to `outputs`, in `groups` with a matrix each.
Softmax of scores between two products of activations is one attention, as a fused kernel runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from torch import nn

from ridgeline.runtime.capture.recording import ATTEND, PRODUCTS, OpNode, Recording

Shapes = Mapping[str, tuple[int, ...]]
"""Parameters by name."""
SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax"})
MOVES = frozenset({"_unsafe_view", "clone", "_to_copy", "copy_", "contiguous", "expand", "lift_fresh", "detach"})
GATHERS = frozenset({"embedding", "input"})
FARTHEST = 40  # ops between a softmax and the products of its attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplied:
    """A product as numbers: `weight` names the matrix, `bias` what is added; no weight: two activations."""

    node: int
    rows: int
    inputs: int
    outputs: int
    groups: int = 1
    weight: str = ""
    bias: str = ""
    depthwise: bool = False

    @property
    def flops(self) -> float:
        """Two for each multiply-add; rows are those of all groups together."""
        return 2.0 * self.rows * self.inputs * self.outputs


def multiply_node(place: int, node: OpNode, shapes: Shapes) -> Multiplied:
    """The numbers of a product; of a convolution those of the product that it is."""
    tensors = list(zip(node.shapes, node.inputs, strict=True))
    bias = ""
    if node.op in ("addmm", "baddbmm", "addbmm"):
        bias = next((name for name in node.weights if len(shapes.get(name, ())) == 1), "") if tensors[0][1] < 0 else ""
        tensors = tensors[1:]
    weight_name = next((name for name in node.weights if name != bias), "")
    if node.op == "convolution":
        (read, _), (kernel, kernel_weight) = tensors[:2]
        groups = max(1, read[1] // kernel[1])
        rows, size = node.out[0] * prod(node.out[2:]), kernel[1] * prod(kernel[2:])
        bias = next((name for name in node.weights if len(shapes.get(name, ())) == 1), "")
        return Multiplied(
            node=place, rows=rows * groups, inputs=size, outputs=max(1, node.out[1] // groups), groups=groups,
            weight=weight_name if kernel_weight < 0 else "", bias=bias, depthwise=groups > 1 and groups == read[1],
        )  # fmt: skip
    (left_shape, first), (right, second) = tensors[:2]
    if node.op in ("_grouped_mm", "grouped_mm_fallback"):
        rows, (groups, inputs, outputs), weight = left_shape[0], right, weight_name
        return Multiplied(
            node=place, rows=rows, inputs=inputs, outputs=outputs, groups=groups, weight=weight, bias=bias
        )
    groups = left_shape[0] if len(left_shape) == 3 else 1
    weight = weight_name if first < 0 or second < 0 else ""
    if first < 0 and weight:  # the matrix stands left
        left_shape, right = (*right[:-2], right[-1], right[-2]), (*left_shape[:-2], left_shape[-1], left_shape[-2])
    rows, inputs, outputs = groups * left_shape[-2], left_shape[-1], right[-1]
    return Multiplied(node=place, rows=rows, inputs=inputs, outputs=outputs, groups=groups, weight=weight, bias=bias)


class LayerGraph:
    """Ops of one call, by their place in the recording."""

    def __init__(self, recording: Recording, places: Sequence[int], shapes: Shapes) -> None:
        self.recording, self.shapes = recording, shapes
        self.nodes: dict[int, OpNode] = {place: recording.nodes[place] for place in places}
        self.scored: set[int] = set()
        self._join_attentions()

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        readers_of: dict[int, list[int]] = {}
        for place, node in self.nodes.items():
            for source in node.inputs:
                if source in self.nodes:
                    readers_of.setdefault(source, []).append(place)
        return {place: tuple(readers_) for place, readers_ in readers_of.items()}

    @cached_property
    def products(self) -> tuple[Multiplied, ...]:
        """Products that are no part of an attention, in order."""
        return tuple(
            multiply_node(place, node, self.shapes)
            for place, node in self.nodes.items()
            if node.op in PRODUCTS and place not in self.scored
        )

    @cached_property
    def by_place(self) -> Mapping[int, Multiplied]:
        return {product.node: product for product in self.products}

    @property
    def attentions(self) -> tuple[int, ...]:
        return tuple(place for place, node in self.nodes.items() if node.op == ATTEND)

    def path(self, place: int) -> str:
        return self.recording.path(self.nodes[place])

    def _stops(self, place: int) -> bool:
        node = self.nodes[place]
        if node.op == ATTEND:
            return True
        return node.op in PRODUCTS and place not in self.scored and bool(self.by_place[place].weight)

    def before(self, places: Iterable[int]) -> tuple[int, ...]:
        """Products with weights and attentions that results were made of, the nearest ones."""
        return tuple(sorted(place for place in self._walk(places, self._sources) if self._stops(place)))

    def behind(self, place: int) -> tuple[int, ...]:
        """Products with weights and attentions that read a result, the nearest ones."""
        walk = self._walk(self._readers(place), lambda at: () if self._stops(at) else self._readers(at))
        return tuple(sorted(reader for reader in walk if self._stops(reader)))

    def above(self, places: Iterable[int]) -> frozenset[int]:
        """Everything in the layer that results were made of, through products too."""
        return frozenset(self._walk(places, lambda place: self.nodes[place].inputs))

    def between(self, places: Iterable[int]) -> frozenset[int]:
        """Pointwise ops that stand before results, up to the products that made them."""
        return frozenset(place for place in self._walk(places, self._sources) if place not in self.by_place)

    def leads_to(self, place: int, found: Callable[[OpNode], bool]) -> bool:
        """Whether such an op follows a product without another product between them."""
        walk = self._walk(self._readers(place), lambda at: () if at in self.by_place else self._readers(at))
        return any(found(self.nodes[at]) for at in walk if at not in self.by_place)

    def _sources(self, place: int) -> tuple[int, ...]:
        return () if self._stops(place) else self.nodes[place].inputs

    def _readers(self, place: int) -> tuple[int, ...]:
        return self.readers.get(place, ())

    def _walk(self, places: Iterable[int], step: Callable[[int], Iterable[int]]) -> Iterator[int]:
        """Places that `step` leads to from these, each once, these among them."""
        ahead, visited_nodes = list(places), set[int]()
        while ahead:
            place = ahead.pop()
            if place in self.nodes and place not in visited_nodes:
                visited_nodes.add(place)
                yield place
                ahead += step(place)

    def _join_attentions(self) -> None:
        """Softmax between two products of activations becomes one op."""
        for place, node in list(self.nodes.items()):
            if node.op not in SOFTMAX or len(node.out) < 3:
                continue
            scores = self._nearest_product([place], lambda at: self.nodes[at].inputs)
            values = self._nearest_product(self._readers(place), self._readers)
            if scores is None or values is None or min(self.nodes[scores].inputs[-2:]) < 0:
                continue
            first, second = self.nodes[scores], self.nodes[values]
            query, key = first.inputs[-2:]
            heads = node.elements // (node.out[-1] * node.out[-2])
            wide, deep = first.shapes[-2][-1], second.shapes[-1][-1]
            sizes = ((heads, node.out[-2], wide), (heads, node.out[-1], wide), (heads, node.out[-1], deep))
            self.nodes[values] = replace(
                second, op=ATTEND, inputs=(query, key, second.inputs[-1]), weights=(), shapes=sizes,
                facts={"causal": True, "window": 0, "unfused": True},
            )  # fmt: skip
            self.scored |= {scores}
        self.__dict__.pop("readers", None)

    def _nearest_product(self, places: Iterable[int], step: Callable[[int], Iterable[int]]) -> int | None:
        """The product that pointwise ops lead to, if it is one of activations and near."""
        for count, place in enumerate(self._walk(places, step), 1):
            node = self.nodes[place]
            if node.op in PRODUCTS:
                return place if not node.weights else None
            if count > FARTHEST:
                break
        return None


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
        repeats = isinstance(part, nn.Sequential) and len(part) > 1 and len({type(child) for child in part}) == 1
        is_list = isinstance(part, nn.ModuleList) or repeats
        if is_list and any(next(child.children(), None) is not None for child in part):
            lengths[path] = len(part)
    return lengths


def layers_of(recording: Recording, module: nn.Module, shapes: Shapes) -> Layers:
    lists = lists_of(module)
    in_lists = _gather_layers(
        recording, shapes, lambda path: path.rpartition(".")[2].isdigit() and path.rpartition(".")[0] in lists
    )
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
    products = {place for place, node in enumerate(recording.nodes) if node.op in PRODUCTS and node.weights}
    weighty = {call for call, places in inside.items() if not products.isdisjoint(places)}
    outside += [place for call, places in inside.items() if call not in weighty for place in places]
    claimed_params: set[str] = set()
    by_first_node = sorted(weighty, key=lambda one: inside[one][0])
    layers = tuple(_layer(recording, call, inside[call], shapes, claimed_params) for call in by_first_node)
    return Layers(calls=layers, outside=tuple(sorted(outside)))


def _layer(recording: Recording, call: int, places: list[int], shapes: Shapes, claimed: set[str]) -> LayerCall:
    """A call with the parameters of its module, and those from elsewhere that it uses; each belongs to one layer."""
    path, out = recording.calls[call].path, recording.calls[call].out
    under = [name for name in shapes if name.startswith(f"{path}.")]
    weight_names = [name for place in places for name in recording.nodes[place].weights]
    params = tuple(name for name in dict.fromkeys((*under, *weight_names)) if name in shapes and name not in claimed)
    claimed.update(params)
    return LayerCall(path=path, places=tuple(places), params=params, width=out[-1] if out else 0, rows=prod(out[:-1]))


def signature(recording: Recording, layer: LayerCall, shapes: Shapes) -> tuple[object, ...]:
    """What makes two layers one kind: the same ops on the same shapes, and parameters of the same shapes."""
    ops = tuple(
        (recording.nodes[at].op, recording.nodes[at].out, tuple(recording.nodes[at].facts.items()))
        for at in layer.places
        if not recording.nodes[at].view
    )
    owned_shapes = tuple(sorted((name.removeprefix(layer.path), shapes[name]) for name in layer.params))
    return layer.width, layer.rows, ops, owned_shapes
