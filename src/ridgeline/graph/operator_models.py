"""Put a declared operator into a model's layers, so that `predict`, `plan` and `roofline` price it as the rest.

What it does for a token is found by asking for two lengths: flops that grow with the square of them are of pairs that
see each other, the rest is of single tokens. Weights of the model stay as they are, unless the operator takes the place
of the mixer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.core.errors import InputError, Problem
from ridgeline.graph.operators import Operator, operator_work
from ridgeline.ir.op_graph import format_bytes
from ridgeline.models.blocks import Attention, Block, Captured, Product
from ridgeline.models.spec import ModelSpec

LENGTHS = (1024.0, 4096.0)


def token_figures(operator: Operator, sizes: Mapping[str, float], token: str = "S") -> Captured:
    """What an operator does for a token, and for a pair of them, of one sequence.

    token   the letter that counts tokens

        flops(S) = tokens x S + pairs x S (S + 1) / 2        pairs that see each other: causal ones

    """
    short, long = (operator_work(operator, {**sizes, token: length}) for length in LENGTHS)
    seen_short, seen_long = (length * (length + 1) / 2 for length in LENGTHS)
    per_short, per_long = short.flops / LENGTHS[0], long.flops / LENGTHS[1]
    pairs = (per_long - per_short) / (seen_long / LENGTHS[1] - seen_short / LENGTHS[0])
    tokens = per_short - pairs * seen_short / LENGTHS[0]
    element = format_bytes(operator.dtype)
    if pairs < -1e-9 or tokens < -1e-6 * abs(per_long):
        problem_text = f"operator {operator.name} with flops {operator.flops}"
        raise InputError(
            Problem(path="operator", given=problem_text, expected=f"flops that grow with {token} or its square")
        )
    scores: tuple[Attention, ...] = ()
    if operator.like == "attention":
        scores, pairs = (_scores(operator, sizes, pairs),), 0.0
    written = 0.0 if scores else long.bytes / element / LENGTHS[1] / 2  # of an attention its scores are counted
    return Captured(
        scores=scores, pair_flops=max(pairs, 0.0), scan_flops=max(tokens, 0.0), streams=written,
        kernels=0.0 if scores else 1.0, saved=long.saved_bytes / element / LENGTHS[1], mixes=True,
    )  # fmt: skip


def _scores(operator: Operator, sizes: Mapping[str, float], pairs: float) -> Attention:
    """Attention without projections that has as many flops for a pair: heads of the first and the second input.

    flops of a pair = 4 x heads x width of a head
    """
    shapes = list(operator.inputs.values())
    if len(shapes) < 2 or min(map(len, shapes[:2])) < 3 or pairs <= 0:
        problem_text = f"operator {operator.name}, which is like attention"
        raise InputError(
            Problem(path="operator", given=problem_text, expected="inputs of batch, heads, tokens and width")
        )
    heads, kv_heads = (max(1, round(sizes[shape[1]])) for shape in shapes[:2])
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=max(1, round(pairs / (4 * heads))))


def with_operator(
    model: ModelSpec, operator: Operator, sizes: Mapping[str, float], *, instead: bool = False, token: str = "S"
) -> ModelSpec:
    """The model with an operator in each of its layers that has a mixer.

    instead   it takes the place of the mixer's scores, whose projections stay; False: it stands beside the mixer
    """
    figures = token_figures(operator, sizes, token)
    blocks = tuple(_place(block, figures, model.hidden, instead=instead) for block in model.blocks)
    return replace(model, blocks=blocks, id=f"{model.id}-{operator.name.replace('_', '-')}"[:80])


def _place(block: Block, figures: Captured, hidden: int, *, instead: bool) -> Block:
    """A layer with the operator, which keeps as many parameters as it had."""
    mixer = block.mixer
    if mixer is None or not instead:
        return block if mixer is None else replace(block, captured=figures)
    if not isinstance(mixer, Attention) or mixer.qkv_bias or mixer.out_bias or mixer.gate or mixer.qk_norm != "none":
        problem = Problem(
            path="instead", given=f"a mixer of kind {mixer.kind}", expected="plain softmax attention without biases",
            todo="leave `instead` out: the operator then stands beside the mixer",
        )  # fmt: skip
        raise InputError(problem)
    keys, values = mixer.kv_heads * mixer.head_dim, mixer.kv_heads * (mixer.v_head_dim or mixer.head_dim)
    width = mixer.heads * mixer.head_dim + keys + values
    out = mixer.heads * (mixer.v_head_dim or mixer.head_dim)
    products = (
        Product(label="queries, keys and values", inputs=hidden, outputs=width),
        Product(label="output", inputs=out, outputs=hidden),
    )
    operator_parts = replace(figures, products=products, params=hidden * width + out * hidden, cached=keys + values)
    return replace(block, mixer=None, captured=operator_parts)
