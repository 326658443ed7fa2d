"""Turn recorded products and modules into the known parts of a model that they are.

softmax    queries, keys and values from the hidden width, one product behind: `Attention`
latent     keys and values from a small latent, queries from another one or none: `LatentAttention`
dense      up and down with an activation between them: `Mlp`
experts    told by their matrices: a stack of them in one parameter, or modules of one shape in a list, of which a
           forward without values runs the first: `Moe`
recurrent  a forward without fused kernels spells a scan out, so that shapes of ops say little; the sizes are read from
           the module's own attributes and proved by its parameters
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from torch import nn

from ridgeline.core.documents import JsonObject
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.spec import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mlp, Moe, Recurrence
from ridgeline.runtime.capture.graph import LayerGraph, Multiplied, Shapes
from ridgeline.runtime.capture.recording import GROUPED

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
        return Attention(
            heads=self.heads, kv_heads=kv_heads, head_dim=self.wide,
            v_head_dim=self.deep if self.deep != self.wide else 0, window=self.window, chunked=self.chunked,
            causal=self.causal,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip


P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPart(Generic[P]):
    """A part of a model, the products it explains, where its results enter and leave, and ops that are its norms."""

    part: P
    used: frozenset[int]
    enters: tuple[int, ...]
    leaves: int = -1
    norms: frozenset[int] = frozenset()


KnownAttention = KnownPart[Attention] | KnownPart[LatentAttention]


def heads_of(graph: LayerGraph, place: int) -> Heads:
    facts, (query, key, value) = graph.nodes[place].facts, graph.nodes[place].shapes[:3]
    heads, keys = (shape[-3] if len(shape) > 2 else 1 for shape in (query, key))
    window, chunked = int(facts.get("window") or 0), bool(facts.get("chunked"))
    mask: JsonObject = {"window": window, "chunked": chunked, "causal": bool(facts.get("causal", True))}
    return Heads(heads=heads, keys=keys, wide=query[-1], deep=value[-1], **mask)


def attention_at(graph: LayerGraph, place: int, hidden: int) -> KnownAttention | None:
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
    if not all(node in graph.by_place for node in places_before):
        return ()
    return tuple(graph.by_place[node] for node in places_before)


def _softmax(
    graph: LayerGraph, place: int, hidden: int, sources: list[tuple[Multiplied, ...]], out: Multiplied
) -> KnownAttention | None:
    heads, into = heads_of(graph, place), {product.node: product for source in sources for product in source}
    if any(product.inputs != hidden for product in into.values()):
        return None
    grouping = _solve_grouping(heads, sources)
    if grouping is None:
        return None
    kv_heads, gate, shared = grouping
    beside = (node for node in graph.before(graph.nodes[out.node].inputs) if node in graph.by_place and node != place)
    other_gates = [graph.by_place[node] for node in beside if node not in into]  # its output is multiplied with them
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
    return KnownPart(
        part=part, used=frozenset({*into, out.node}), enters=tuple(into), leaves=out.node, norms=between
    )  # fmt: skip


def _solve_grouping(heads: Heads, sources: list[tuple[Multiplied, ...]]) -> tuple[int, bool, bool] | None:
    """Key-value heads, whether queries come with a gate, and whether values are keys; from widths of products."""
    query, key, value = ({product.node: product.outputs for product in source} for source in sources)
    wide, key_and_value = heads.heads * heads.wide, heads.wide + heads.deep
    if query.keys() == key.keys() == value.keys():
        surplus = sum(query.values()) - wide
        for gate in (False, True):
            shared_width = surplus - gate * wide
            groups, remainder = divmod(shared_width, key_and_value)
            if groups > 0 and remainder == 0 and heads.heads % groups == 0:
                return groups, gate, False
        return None
    gate = sum(query.values()) == 2 * wide
    if sum(query.values()) != wide * (1 + gate):
        return None
    keys = sum(key.values())
    if key.keys() == value.keys():
        shared = keys == heads.keys * heads.wide
        size = heads.wide if shared else key_and_value
        return (keys // size, gate, shared) if keys % size == 0 and heads.heads % (keys // size) == 0 else None
    if keys % heads.wide or sum(value.values()) * heads.wide != keys * heads.deep:
        return None
    kv_heads = keys // heads.wide
    return (kv_heads, gate, False) if heads.heads % kv_heads == 0 else None


def _latent(
    graph: LayerGraph, place: int, hidden: int, sources: list[tuple[Multiplied, ...]], out: Multiplied
) -> KnownAttention | None:
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
    return KnownPart(part=part, used=frozenset(used), enters=enters, leaves=out.node, norms=chain)


ACTIVATIONS = ("silu", "gelu", "relu", "sigmoid", "tanh", "elu", "softplus", "hardswish", "mish")
Lists = Mapping[str, int]
"""Lists of modules by path, with their length."""


def mlps(graph: LayerGraph, hidden: int, unused: Sequence[Multiplied]) -> list[KnownPart[Mlp]]:
    """Every pair of up and down products of the hidden width."""
    mlps_: list[KnownPart[Mlp]] = []
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
        mlps_.append(KnownPart(part=part, used=used, enters=tuple(up.node for up in ups), leaves=down.node))
    return mlps_


def activation(graph: LayerGraph, down: int) -> str:
    ops = {graph.nodes[at].op.rstrip("_") for at in graph.between(graph.nodes[down].inputs)}
    name = next((name for name in ACTIVATIONS if name in ops), "")
    if name == "relu" and {"pow", "square"} & ops:
        return "relu2"
    if name == "tanh" and ({"pow"} & ops or {"mul", "add"} <= ops):
        return "gelu_new"
    if name == "sigmoid":
        return "silu"
    return name or "identity"


def experts(graph: LayerGraph, hidden: int, unused: Sequence[Multiplied], lists: Lists) -> KnownPart[Moe] | None:
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
    others = [product for product in unused if product.node not in experts_of_node]
    routers = [product for product in others if product.outputs == count and product.inputs == hidden]
    routers = [router for router in routers if graph.leads_to(router.node, lambda node: "k" in node.facts)] or routers
    if not routers:
        return None
    used, latent = {*experts_of_node, routers[0].node}, 0
    if inner != hidden:
        others = [product for product in unused if product.node not in used]
        latent_products = [product for product in others if {product.inputs, product.outputs} == {hidden, inner}]
        if len(latent_products) != 2:
            return None
        latent, used = inner, used | {product.node for product in latent_products}
    topk, groups, group_topk = _chosen(graph, count, routers[0], products)
    others = [product for product in unused if product.node not in used]
    shared = mlps(graph, hidden, others)
    gates = [product for product in others if product.outputs == 1 and product.inputs == hidden]
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
    return KnownPart(part=part, used=frozenset(used), enters=(routers[0].node,))


def _experts_of(graph: LayerGraph, product: Multiplied, lists: Lists) -> int:
    """How many experts a product is one of; 1 where it is nproduct."""
    shape = graph.shapes.get(product.weight, ())
    if len(shape) == 3 and not product.depthwise:
        return shape[0]
    path = graph.path(product.node)
    rows = max((other.rows for other in graph.products if other.groups == 1 and other.weight), default=0)
    for match in list(re.finditer(r"\.(\d+)(?=\.|$)", path))[1:]:  # the first is the layer itself
        size = lists.get(path[: match.start()], 0)
        if size > 1 and product.rows * 2 <= rows:
            return size
    return 1


def _stacked_biases(graph: LayerGraph, count: int, products: Sequence[Multiplied]) -> bool:
    """Whether vectors of all experts in one parameter, as wide as what they make, are looked up."""
    widths = {(count, product.outputs) for product in products}
    product_weights = {product.weight for product in graph.products}
    names = {name for node in graph.nodes.values() for name in node.weights} - product_weights
    return any(graph.shapes.get(name) in widths for name in names)


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


State = Mamba2 | GatedDeltaNet | Recurrence


def recurrent_in(modules: Mapping[str, nn.Module], layer: str, shapes: Shapes, hidden: int) -> tuple[State, str] | None:
    for path, module in modules.items():
        if not path.startswith(f"{layer}."):
            continue
        total = sum(prod(shape) for name, shape in shapes.items() if name.startswith(f"{path}."))
        for form in FORMS:
            part = next((mixer for mixer in form(module) if total == mixer_parts(mixer, hidden).params), None)
            if part is not None:
                return part, path
    return None


def _sizes(module: nn.Module, *names: tuple[str, ...]) -> list[int]:
    """The first attribute of each tuple of names; nothing where one is no count."""
    sizes: list[int] = []
    for options in names:
        value: object = next((getattr(module, option) for option in options if hasattr(module, option)), None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return []
        sizes.append(value)
    return sizes


def _has_bias(module: nn.Module, *names: str) -> bool:
    """Whether the first of its parts with such a name has a bias."""
    part = next((getattr(module, name) for name in names if isinstance(getattr(module, name, None), nn.Module)), None)
    return getattr(part, "bias", None) is not None


def _mamba2(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(
        module, ("num_heads", "n_heads"), ("head_dim",), ("ssm_state_size", "state_size", "d_state"),
        ("n_groups", "ngroups"), ("conv_kernel_size", "d_conv", "conv_kernel"),
    )  # fmt: skip
    if not sizes or not hasattr(module, "conv1d") or not hasattr(module, "in_proj"):
        return
    heads, head_dim, state, groups, kernel = sizes
    chunk = next(iter(_sizes(module, ("chunk_size", "block_size"))), 128)
    for norm in (True, False):
        yield Mamba2(
            heads=heads, head_dim=head_dim, state=state, groups=groups, conv=kernel, gated_norm=norm,
            conv_bias=_has_bias(module, "conv1d"), proj_bias=_has_bias(module, "in_proj"), chunk=chunk,
        )  # fmt: skip


def _delta(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(
        module, ("num_k_heads",), ("num_v_heads",), ("head_k_dim",), ("head_v_dim",), ("conv_kernel_size",)
    )  # fmt: skip
    if sizes:
        key_heads, value_heads, key_dim, value_dim, kernel = sizes
        yield GatedDeltaNet(
            key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim, conv=kernel
        )


def _selective(module: nn.Module) -> Iterator[State]:
    """Mamba 1, and Jamba's with norms of what its steps are made of."""
    sizes = _sizes(
        module, ("intermediate_size", "d_inner"), ("ssm_state_size", "d_state"), ("time_step_rank", "dt_rank"),
        ("conv_kernel_size", "d_conv"),
    )  # fmt: skip
    if not sizes or not hasattr(module, "conv1d"):
        return
    inner, state, rank, kernel = sizes
    for norms in (False, True):
        yield Recurrence(
            form="selective", heads=inner, key_dim=state, rank=rank, conv=kernel, inner_norms=norms,
            conv_bias=_has_bias(module, "conv1d"), bias=_has_bias(module, "in_proj"),
        )  # fmt: skip


def _short_conv(module: nn.Module) -> Iterator[State]:
    conv, project = getattr(module, "conv", None), getattr(module, "in_proj", None)
    if isinstance(conv, nn.Conv1d) and isinstance(project, nn.Linear) and project.out_features % 3 == 0:
        yield Recurrence(
            form="short-conv", heads=project.out_features // 3, conv=int(conv.kernel_size[0]),
            conv_bias=conv.bias is not None, bias=project.bias is not None,
        )  # fmt: skip


def _lightning(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(module, ("num_attention_heads",), ("head_dim",), ("block_size",))
    if sizes and hasattr(module, "output_gate"):
        heads, size, chunk = sizes
        yield Recurrence(form="lightning", heads=heads, key_dim=size, value_dim=size, chunk=chunk)


def _kda(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(module, ("num_heads",), ("head_dim",), ("conv_kernel_size", "conv_size"))
    if sizes and hasattr(module, "b_proj"):
        heads, size, kernel = sizes
        yield Recurrence(form="kda", heads=heads, key_dim=size, value_dim=size, rank=size, conv=kernel)


def _wkv(module: nn.Module) -> Iterator[State]:
    sizes = _sizes(module, ("attention_hidden_size",))
    if sizes and hasattr(module, "time_decay"):
        yield Recurrence(form="wkv", heads=sizes[0])


FORMS: tuple[Callable[[nn.Module], Iterator[State]], ...] = (
    _mamba2, _delta, _selective, _short_conv, _lightning, _kda, _wkv,
)  # fmt: skip
"""What a recurrent module may be, each as the parts that its attributes allow."""
