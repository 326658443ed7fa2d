"""Turn a Program into the ops that each pipeline rank executes in a step, by size: what a trace of it should show.

    sections     forward, recompute, both gradients: once for every microbatch and layer
    sends        activations and their gradients where the neighbouring virtual stage is another rank's
    step         gathers and scatters of sharded weights, gradient reduction, both ends of a tied embedding

Memory-bound work has no size that a trace would show in one op, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ridgeline.ir.kernel import Kernel
from ridgeline.ir.ops import Attend, Collective, MatMul, Op
from ridgeline.ir.program import Program, Section, Tensor
from ridgeline.ir.rank_ops import OpPath, RankOp, attention_size, collective_size, grouped_size, product_size
from ridgeline.lowering.context import LoweringContext, lowering_context
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.lowering.step_ops import grad_reduce, layer_gather, layer_scatter, param_gather
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.parts import ffn_parts
from ridgeline.models.spec import Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank

EXPERTS = ("experts up", "experts down")
BY_HEAD_OR_TOKEN = ("attention.qk_norm", "router")  # see other heads, or other tokens, on every tensor rank in any plan


def rank_ops(scenario: Scenario) -> tuple[tuple[RankOp, ...], ...]:
    """What every pipeline rank executes in a step; experts get equal shares of their rows."""
    even = replace(scenario, plan=replace(scenario.plan, switches=replace(scenario.plan.switches, moe_imbalance=1.0)))
    ctx, program = lowering_context(even), lower(even)
    plan = scenario.plan
    stages_by_rank = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    return tuple(
        (*_sections(ctx, program, stages, scenario.microbatches), *_sends(even, program, stages_by_rank, rank),
         *_step(even, program, stages, rank))
        for rank, stages in enumerate(stages_by_rank)
    )  # fmt: skip


def _sections(ctx: LoweringContext, program: Program, own: Sequence[int], microbatches: int) -> Iterator[RankOp]:
    repeats = np.array(program.stages)[list(own)].sum(0)
    for section, count in zip(program.sections, repeats.tolist(), strict=True):
        for op in (*section.forward, *section.recompute, *section.backward_input, *section.backward_weight):
            rank_op = _rank_op(ctx, section, op, count * microbatches)
            if rank_op is not None and rank_op.count:
                yield rank_op


def _rank_op(ctx: LoweringContext, section: Section, op: Op, count: int) -> RankOp | None:
    match op:
        case MatMul():
            ways = _parts(ctx, section, op)
            return RankOp(label=op.label, kernel=matmul_size(op), count=count, paths=ways, family=_base(op.label))
        case Attend():
            return _attention(op, count)
        case Collective():
            return _collective(op, count)
        case _:
            return None


def matmul_size(op: MatMul) -> Kernel:
    """The size of a product; those of experts by the rows of all of them."""
    if _base(op.label) not in EXPERTS:
        return product_size(_n(op.groups), _n(op.m), _n(op.n), _n(op.k))
    groups = _n(op.groups)
    if op.label.endswith(" dW"):
        return grouped_size(groups, _n(op.k) * groups, _n(op.m), _n(op.n), weights=True)
    return grouped_size(groups, _n(op.m) * groups, _n(op.n), _n(op.k))


def _base(label: str) -> str:
    return label.removesuffix(" dX").removesuffix(" dW")


def _n(size: object) -> float:
    return float(np.asarray(size).reshape(-1)[0])


def _parts(ctx: LoweringContext, section: Section, op: MatMul) -> tuple[OpPath, ...]:
    """The products that one over a joined width stands for."""
    widths = _widths(ctx, section, _base(op.label))
    if len(widths) < 2:
        return ()
    width_sum = _n(op.k if op.label.endswith(" dX") else op.n)
    shares = [width_sum * width / sum(widths) for width in widths]
    modules = [replace(op, k=width) if op.label.endswith(" dX") else replace(op, n=width) for width in shares]
    return (OpPath(name="joined", kernels=tuple((matmul_size(part), 1) for part in modules)),)


def _widths(ctx: LoweringContext, section: Section, label: str) -> tuple[float, ...]:
    """Widths of what a product of this label joins, in any unit."""
    block = ctx.block_of(section)
    if block is None:
        return ()
    hidden = ctx.model.hidden
    mixers = [mixer_parts(block.mixer, hidden)] if block.mixer else []
    dense = ffn_parts(block.ffn, hidden).dense if block.ffn else None
    products = (*(part for parts in mixers for part in parts.products), *((dense.up,) if dense else ()))
    if label == "experts up" and isinstance(block.ffn, Moe) and block.ffn.gated:
        return (1.0, 1.0)
    joint = next((part for part in products if part.label == label and part.joins), None)
    if joint is None:
        return ()
    copies = [max(1.0, _n(ctx.degrees.tp) / part.shared_heads) if part.shared_heads else 1.0 for part in joint.columns]
    return tuple(width * copies[-1 if place else 0] for place, width in enumerate(joint.joins))


def _attention(op: Attend, count: int) -> RankOp | None:
    """Scores as one kernel, or as their products; a ring has as many of them as ranks."""
    if op.sizes is None:
        return None
    heads, queries, keys, wide, deep = map(_n, op.sizes)
    steps = round(_n(op.steps))
    size = attention_size(heads, (queries, keys), (wide, deep), backward=op.backward)
    ways: tuple[OpPath, ...]
    scores, values = product_size(heads, queries, keys, wide), product_size(heads, queries, deep, keys)
    if not op.backward:
        ways = (OpPath(name="scores", kernels=((scores, 1), (values, 1))),)
    else:
        d_queries = product_size(heads, queries, wide, keys)
        d_keys, d_values = product_size(heads, keys, wide, queries), product_size(heads, keys, deep, queries)
        d_scores = product_size(heads, queries, keys, deep)
        gradient_products = ((d_queries, 1), (d_keys, 1), (d_values, 1), (d_scores, 1))
        ways = (
            OpPath(name="scores", kernels=(*gradient_products, (scores, 1))),
            OpPath(name="scores saved", kernels=gradient_products),
        )
        ways = (ways[0],) if steps > 1 else ways
    return RankOp(label=op.label, kernel=size, count=count * steps, paths=ways, family=op.label)


def _collective(op: Collective, count: int) -> RankOp | None:
    ranks, stride, size = (round(_n(number)) for number in (op.ranks, op.stride, op.payload_bytes))
    if ranks == 1 or not size:
        return None
    ways: tuple[OpPath, ...] = ()
    if op.axis == "cp" and op.kind == "all-gather":
        hops = (ranks - 1) * (2 if op.label.endswith("dX") else 1)
        share = size // (ranks * (2 if op.label.endswith("dX") else 1))
        ways = (OpPath(name="ring", kernels=((collective_size("send", 2, stride, share), hops),)),)
    elif op.parts:
        pieces = [collective_size(op.kind, ranks, stride, size * _n(part)) for part in op.parts]
        ways = (OpPath(name="heads", kernels=tuple((piece, 1) for piece in pieces)),)
    kernel = collective_size(op.kind, ranks, stride, size)
    return RankOp(label=op.label, kernel=kernel, count=count, paths=ways if op.kind != "send" else ())


def _sends(scenario: Scenario, program: Program, held: Sequence[Sequence[int]], rank: int) -> Iterator[RankOp]:
    """Activations to the next virtual stage and gradients to the one before, where another rank has it."""
    assert program.step is not None
    last = len(program.stages) - 1
    ends = [stage for stage in held[rank] if stage < last and stage + 1 not in held[rank]]
    begins = [stage for stage in held[rank] if stage > 0 and stage - 1 not in held[rank]]
    count = (len(ends) + len(begins)) * scenario.microbatches
    send = _collective(program.step.send, count)
    if send is not None and count:
        yield send


def _step(scenario: Scenario, program: Program, own: Sequence[int], rank: int) -> Iterator[RankOp]:
    step, microbatches = program.step, scenario.microbatches
    assert step is not None
    repeats = np.array(program.stages)[list(own)].sum(0)
    for times, ops in ((2, step.layer_gather), (1, step.layer_scatter)):
        for op in ops:
            for place, count in enumerate(repeats.tolist()):
                yield from _buckets(op, place, count * times * microbatches)
    for op in (*step.grad_reduce, *step.param_gather):
        yield from _buckets(op, rank, 1)
    yield from _tied(step.embedding_reduce, own, len(program.stages))
    yield from _unsectioned_weights(scenario, own, len(program.stages))
    yield from _replicated_gradients(scenario, program, repeats.tolist())


def _buckets(op: Collective, place: int, count: int) -> Iterator[RankOp]:
    payload, ranks, stride = (
        np.broadcast_to(np.asarray(column, dtype=np.float64).reshape(-1), (max(place + 1, np.size(column)),))[place]
        for column in (op.payload_bytes, op.ranks, op.stride)
    )
    bucket = _collective(replace(op, payload_bytes=payload, ranks=ranks, stride=stride), count)
    if bucket is not None and count:
        yield replace(bucket, summed=True)


def _tied(op: Collective, own: Sequence[int], stages: int) -> Iterator[RankOp]:
    """Both ends of a pipeline add up a tied embedding's gradient: an all-reduce of two ranks, or a send each way."""
    exchange = _collective(op, 1)
    if exchange is None or not ({0, stages - 1} & set(own)):
        return
    size = collective_size("send", 2, exchange.kernel.dims["stride"], exchange.kernel.dims["bytes"])
    yield replace(exchange, paths=(OpPath(name="pair", kernels=((size, 1),)),))


def _unsectioned_weights(scenario: Scenario, own: Sequence[int], stages: int) -> Iterator[RankOp]:
    """Weights of the last stage that no section counts: the final norm, and the copy of an embedding (tied, or read to
    predict further tokens) that a later stage holds. They are gathered and reduced like any; too small to be priced, or
    priced with the embedding."""
    if stages - 1 not in own:
        return
    model, plans = scenario.model, plan_columns([scenario])
    norm = float(model.norm.params(model.hidden)) if model.norm else 0.0
    copied_rows = float(plans.shared_rows[0]) if stages > 1 else 0.0
    for name, params in (("the final norm", norm), ("the embedding's copy", copied_rows)):
        params_column = np.array([[params], [0.0]])
        ops = [(op, 1) for op in (*grad_reduce(params_column, plans), *param_gather(params_column, plans))]
        if plans.layer_by_layer[0]:
            ops += [(op, 2 * scenario.microbatches) for op in layer_gather(params_column, plans)]
            ops += [(op, scenario.microbatches) for op in layer_scatter(params_column, plans)]
        for op, count in ops if params else ():
            yield from _buckets(replace(op, label=f"{op.label} of {name}"), 0, count)


def _replicated_gradients(scenario: Scenario, program: Program, often: Sequence[int]) -> Iterator[RankOp]:
    """Gradients of weights that tensor ranks hold alike (norms, routers, latents), summed over them as each is reduced;
    too small to be priced."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    if mesh.tp == 1:
        return
    split = lowering_context(scenario).sequence_parallel
    params = sum(
        count * prod(tensor.dims)
        for section, count in zip(program.sections, often, strict=True)
        for tensor in section.tensors
        if tensor.kind == "weight" and _is_alike(tensor, split=split)
    )
    every_microbatch = plan.sharding.shard in ("zero2", "zero3") and mesh.pp == 1 and mesh.dp * mesh.cp > 1
    size = round(float(params * plan.precision.weights.bytes_per_element))
    count = scenario.microbatches if every_microbatch else 1
    if size:
        op = collective_size("all-reduce", mesh.tp, 1, size)
        yield RankOp(label="sum gradients of weights held alike", kernel=op, count=count, summed=True)


def _is_alike(tensor: Tensor, *, split: bool) -> bool:
    """Whether tensor ranks hold a weight alike and see different parts of what its gradient sums over."""
    if any(cut.axis in ("tp", "ep") for cut in tensor.splits):
        return False
    return split or tensor.name.startswith(BY_HEAD_OR_TOKEN)
