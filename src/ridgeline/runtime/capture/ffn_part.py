"""Turn recorded products into feed-forward parts: up and down with an activation between them, or experts and a router.

Experts are told by their matrices: a stack of them in one parameter, or modules of one shape in a list, of which a
forward without values runs the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.models.spec import Mlp, Moe
from ridgeline.runtime.capture.graph import LayerGraph, Multiplied
from ridgeline.runtime.capture.recording import GROUPED

ACTIVATIONS = ("silu", "gelu", "relu", "sigmoid", "tanh", "elu", "softplus", "hardswish", "mish")
Lists = Mapping[str, int]
"""Lists of modules by path, with their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMlp:
    """A dense feed-forward with the products it explains."""

    part: Mlp
    used: frozenset[int]
    enters: tuple[int, ...]
    leaves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMoe:
    """Experts with router, shared part and the products they explain."""

    part: Moe
    used: frozenset[int]
    enters: tuple[int, ...]


def mlps(graph: LayerGraph, hidden: int, unused: Sequence[Multiplied]) -> list[FoundMlp]:
    """Every pair of up and down products of the hidden width."""
    mlps_: list[FoundMlp] = []
    free = {product.node for product in unused}
    for down in unused:
        if down.outputs != hidden or down.groups != 1 or down.depthwise:
            continue
        places = graph.before(graph.nodes[down.node].inputs)
        ups = [graph.by_place[place] for place in places if place in graph.by_place]
        wide = sum(up.outputs for up in ups)
        if not ups or len(ups) != len(places) or any(up.inputs != hidden or up.node not in free for up in ups):
            continue
        if any(up.depthwise for up in ups) or wide not in (down.inputs, 2 * down.inputs):
            continue
        part = Mlp(
            hidden=down.inputs, gated=wide == 2 * down.inputs, bias=all(product.bias for product in (*ups, down)),
            activation=activation(graph, down.node),
        )  # fmt: skip
        used = frozenset({down.node, *(up.node for up in ups)})
        mlps_.append(FoundMlp(part=part, used=used, enters=tuple(up.node for up in ups), leaves=down.node))
    return mlps_


def activation(graph: LayerGraph, down: int) -> str:
    """The name of what stands between up and down."""
    ops = {graph.nodes[at].op.rstrip("_") for at in graph.between(graph.nodes[down].inputs)}
    name = next((name for name in ACTIVATIONS if name in ops), "")
    if name == "relu" and {"pow", "square"} & ops:
        return "relu2"
    if name == "tanh" and ({"pow"} & ops or {"mul", "add"} <= ops):
        return "gelu_new"
    if name == "sigmoid":
        return "silu"
    return name or "identity"


def experts(graph: LayerGraph, hidden: int, unused: Sequence[Multiplied], lists: Lists) -> FoundMoe | None:
    """The mixture of experts of a layer, if there is one, with its shared part."""
    experts_of_node = {product.node: size for product in unused if (size := _experts_of(graph, product, lists)) > 1}
    if not experts_of_node or len(set(experts_of_node.values())) != 1:
        return None
    count = next(iter(experts_of_node.values()))
    products = [graph.by_place[node] for node in experts_of_node]
    first = min(products, key=lambda one: one.node)
    inner = first.inputs
    downs = [product for product in products if product.outputs == inner and product.node != first.node]
    if not downs:
        return None
    ups = [product for product in products if product.inputs == inner and product.node < downs[0].node]
    wide, width = sum(up.outputs for up in ups), downs[0].inputs
    if wide not in (width, 2 * width):
        return None
    routers = [
        product
        for product in unused
        if product.outputs == count and product.inputs == hidden and product.node not in experts_of_node
    ]
    routers = [router for router in routers if _leads_to_choice(graph, router.node)] or routers
    if not routers:
        return None
    used = {*experts_of_node, routers[0].node}
    latent = 0
    if inner != hidden:
        latent_products = [
            product
            for product in unused
            if {product.inputs, product.outputs} == {hidden, inner} and product.node not in used
        ]
        if len(latent_products) != 2:
            return None
        latent, used = inner, used | {product.node for product in latent_products}
    topk, groups, group_topk = _chosen(graph, count, routers[0], products)
    shared = mlps(graph, hidden, [product for product in unused if product.node not in used])
    gates = [
        product for product in unused if product.outputs == 1 and product.inputs == hidden and product.node not in used
    ]
    part = Moe(
        experts=count,
        topk=topk,
        hidden=width,
        gated=wide == 2 * width,
        latent=latent,
        shared_hidden=sum(mlp.part.hidden for mlp in shared),
        shared_gate=bool(shared and gates),
        activation=activation(graph, downs[0].node),
        bias=all(product.bias for product in products) or _stacked_biases(graph, count, products),
        router_bias=bool(routers[0].bias),
        groups=groups,
        group_topk=group_topk,
    )
    used |= {node for mlp in shared for node in mlp.used} | ({gates[0].node} if part.shared_gate else set())
    return FoundMoe(part=part, used=frozenset(used), enters=(routers[0].node,))


def _experts_of(graph: LayerGraph, one: Multiplied, lists: Lists) -> int:
    """How many experts a product is one of; 1 where it is none."""
    shape = graph.shapes.get(one.weight, ())
    if len(shape) == 3 and not one.depthwise:
        return shape[0]
    path = graph.path(one.node)
    for match in list(re.finditer(r"\.(\d+)(?=\.|$)", path))[1:]:  # the first is the layer itself
        size = lists.get(path[: match.start()], 0)
        if size > 1 and one.rows * 2 <= _rows(graph):
            return size
    return 1


def _rows(graph: LayerGraph) -> int:
    return max((product.rows for product in graph.products if product.groups == 1 and product.weight), default=0)


def _stacked_biases(graph: LayerGraph, count: int, products: Sequence[Multiplied]) -> bool:
    """Whether vectors of all experts in one parameter, as wide as what they make, are looked up."""
    widths = {(count, product.outputs) for product in products}
    product_weights = {product.weight for product in graph.products}
    names = {name for node in graph.nodes.values() for name in node.weights} - product_weights
    return any(graph.shapes.get(name) in widths for name in names)


def _leads_to_choice(graph: LayerGraph, place: int) -> bool:
    """Whether a top-k follows a product without another product between them."""
    ahead, visited_nodes = list(graph.readers.get(place, ())), set[int]()
    while ahead:
        here = ahead.pop()
        if here in visited_nodes or here in graph.by_place:
            continue
        visited_nodes.add(here)
        if "k" in graph.nodes[here].facts:
            return True
        ahead += graph.readers.get(here, ())
    return False


def _chosen(graph: LayerGraph, count: int, router: Multiplied, products: Sequence[Multiplied]) -> tuple[int, int, int]:
    """Experts of a token; groups of experts, and how many of them are chosen first."""
    picks = [(node.shapes[0], int(node.facts["k"])) for node in graph.nodes.values() if "k" in node.facts]
    group_picks = [(shape[-1], k) for shape, k in picks if len(shape) == 2 and 1 < shape[-1] < count and k < shape[-1]]
    groups, group_topk = next(((size, k) for size, k in group_picks if count % size == 0), (1, 1))
    rows_per_token = max(product.rows for product in products) // max(1, router.rows)
    if all(graph.nodes[product.node].op in GROUPED for product in products) and 0 < rows_per_token <= count:
        return rows_per_token, groups, group_topk
    expert_picks = next((k for shape, k in reversed(picks) if shape[-1] == count), 0)
    return expert_picks or min(max(1, rows_per_token), count), groups, group_topk
