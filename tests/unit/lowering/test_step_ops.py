"""What a step does beside its sections: gradient accumulation, the sum of a tied embedding, dispatch to experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline import predict, scenario
from ridgeline.comm.closed_form.links import plain_links
from ridgeline.comm.closed_form.terms import Routing
from ridgeline.cost.calibration import Calibration
from ridgeline.cost.collectives import ALL_TO_ALL, explain_collective
from ridgeline.ir.ops import Collective, MatMul, Op, Stream
from ridgeline.ir.program import Program, SectionRole
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.lowering.step_ops import accumulate, accumulations, embedding_reduce
from ridgeline.plan.resolve import resolve
from ridgeline.sim import Prediction

TOKENS, HIDDEN, WIDE, LAYERS, VOCAB = 4096, 2048, 8192, 8, 32768
MODEL: dict[str, Any] = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "vocab": VOCAB,
    "attention": {"heads": 16, "kv_heads": 16},
    "mlp": {"hidden": WIDE},
}
LAYER = HIDDEN * (3 * HIDDEN + HIDDEN + 3 * WIDE) + 2 * HIDDEN
TOTAL = LAYERS * LAYER + 2 * VOCAB * HIDDEN
MEMORY = 3.35e12 * 0.82


def table(chips: int = 1, batch: int = 4, model: dict[str, Any] | None = None, **plan: Any) -> dict[str, Any]:
    return {
        "model": model or MODEL,
        "system": f"{chips}xh100-sxm",
        "workload": {"seq": TOKENS, "global_batch": batch},
        "plan": plan,
    }


def program(made: dict[str, Any], *settings: str) -> Program:
    return lower(scenario(made, settings))


def predicted(made: dict[str, Any], *settings: str) -> dict[str, float]:
    found = predict(scenario(made, settings), Calibration(offsets={}))
    assert isinstance(found, Prediction), found
    return {"step": found.step_time_s} | {part.name: part.seconds for part in found.breakdown}


def weight_gradients(made: Program) -> list[MatMul]:
    return [op for section in made.sections for op in section.backward_weight if isinstance(op, MatMul)]


@pytest.mark.parametrize(
    ("engine", "precision", "bytes_each", "often"),
    [
        ("megatron-core", "bf16", 0, 4),  # the product adds into the 32-bit buffer itself
        ("megatron-deepspeed", "bf16", 2 + 2 * 4, 4),  # bf16 optimizer: the gradient read, 32 bits read and written
        ("megatron-deepspeed", "fp16", 2 + 2 * 2, 3),  # fp16: the first microbatch's gradients are the buffer
        ("torch-eager", "bf16", 2 + 2 * 2, 3),
    ],
)
def test_gradient_accumulation(engine: str, precision: str, bytes_each: int, often: int) -> None:
    """Bytes of a microbatch by parameter, and how often four microbatches are added."""
    made = scenario(table(engine=engine, precision=precision))
    plans, trained = plan_columns([made]), np.array([[1e9], [0.0]])
    assert accumulate(trained, plans).stream_bytes[0] == bytes_each * 1e9
    assert accumulations(plans)[0] == often
    written = weight_gradients(lower(made))[0].out_bytes
    assert written == (8 if bytes_each == 0 else 2)  # read and written in 32 bits, or written as stored


def test_accumulation_is_paid_at_the_rate_of_memory() -> None:
    """Megatron-DeepSpeed in bf16, four microbatches: ten bytes a parameter each, by nothing hidden; fewer in fp16."""
    wide = predicted(table(engine="megatron-deepspeed", precision="bf16"))
    half = predicted(table(engine="megatron-deepspeed", precision={"name": "bf16", "gradients": "bf16"}))
    assert wide["memory"] - half["memory"] == pytest.approx(TOTAL * (4 * 10 - 3 * 6) / MEMORY, rel=1e-9)


def test_reduced_in_the_engines_format() -> None:
    """32 bits a gradient on the wire under DeepSpeed's bf16 optimizer, 16 in fp16."""
    sizes = []
    for precision in ("bf16", "fp16"):
        made = scenario(table(chips=4, dp=4, engine="megatron-deepspeed", precision=precision))
        step = lower(made).step
        assert step is not None
        sizes.append(float(np.sum(step.grad_reduce[0].payload_bytes)))
        assert resolve(made).gradients.id == ("fp32" if precision == "bf16" else "fp16")
    assert sizes == pytest.approx([4 * (TOTAL + HIDDEN), 2 * (TOTAL + HIDDEN)], rel=1e-5)


def test_tied_embedding_is_summed_between_the_ends() -> None:
    """Two ranks, (pp - 1) tp dp apart, exchange vocab x hidden / tp gradients of four bytes, once a step."""
    plan: dict[str, Any] = {"tp": 2, "pp": 4, "dp": 2, "engine": "megatron-core"}
    tied = scenario(table(chips=16, batch=16, model={**MODEL, "tied": True}, **plan))
    op = embedding_reduce(plan_columns([tied]))
    found = [float(np.ravel(part)[0]) for part in (op.payload_bytes, op.ranks, op.stride)]
    assert found == [4 * VOCAB * HIDDEN / 2, 2, 3 * 2 * 2]
    for other in (
        table(chips=16, batch=16, **plan),  # untied
        table(chips=4, batch=16, model={**MODEL, "tied": True}, tp=2, dp=2, engine="megatron-core"),  # no pipeline
        table(chips=16, batch=16, model={**MODEL, "tied": True}, **plan | {"schedule": "zbv", "engine": "hai-llm"}),
    ):
        none = embedding_reduce(plan_columns([scenario(other)]))
        assert float(np.ravel(none.ranks)[0]) == 1 or float(np.ravel(none.payload_bytes)[0]) == 0


def test_tied_embedding_is_exposed() -> None:
    """Sixteen chips are two nodes: the ends are in different ones, and the whole all-reduce shows."""
    plan: dict[str, Any] = {"tp": 2, "pp": 4, "dp": 2, "engine": "megatron-core"}
    model = {**MODEL, "tied": True}
    shown = predicted(table(chips=16, batch=16, model=model, **plan))["dp"]
    payload = 4 * VOCAB * HIDDEN / 2
    wire = payload / (50e9 * 0.93)  # half out, half back
    start, hop, meet = 3.7e-6, 9e-6, 10e-6
    summed = wire + start + 2 * (wire * start) ** 0.5 + 2 * hop + meet
    untied = predicted(table(chips=16, batch=16, **plan))["dp"]
    assert shown - untied == pytest.approx(summed, rel=0.02)  # the last stage trains its copy either way


MOE: dict[str, Any] = {
    **{key: part for key, part in MODEL.items() if key != "mlp"},
    "moe": {"experts": 64, "topk": 8, "hidden": 1024, "groups": 8, "group_topk": 4},
}


def exchanges(ops: tuple[Op, ...]) -> dict[str, Collective]:
    return {op.label: op for op in ops if isinstance(op, Collective) and op.axis == "ep"}


def test_narrow_dispatch() -> None:
    """fp8 with a 32-bit scale for 128 values there, bf16 back, forward and backward; bf16 both ways under Megatron."""
    plan: dict[str, Any] = {"dp": 64, "ep": 64, "precision": "fp8", "moe_dispatch": "deepep"}
    copies = TOKENS * 8 * HIDDEN
    for engine, sent in (("hai-llm", 1 + 4 / 128), ("megatron-core", 2.0)):
        block = program(table(chips=64, batch=64, model=MOE, engine=engine, **plan)).sections[2]
        for ops in (block.forward, block.backward_input):
            found = exchanges(ops)
            assert float(found["dispatch"].payload_bytes) == copies * sent
            assert float(found["combine"].payload_bytes) == copies * 2
            assert (found["combine"].token_groups, found["combine"].routing_groups) == (4, 8)


def test_node_limited_routing() -> None:
    """Eight copies over eight nodes reach 8 (1 - (7/8)^8) = 5.25 of them; limited to four, 4 (1 - (3/4)^8) = 3.6."""
    links = plain_links(1e9, 1.0, 8.0)

    def sent(routing: Routing, ranks: int = 64) -> float:
        found = explain_collective(ALL_TO_ALL, 800.0, ranks, 1, links, routing)
        return next(option.far_s for option in found if option.algorithm == "forwarded")

    leaving = 800.0 * 7 / 8
    assert sent(Routing()) == pytest.approx(leaving)
    assert sent(Routing(copies=8.0)) == pytest.approx(leaving * 8 * (1 - (7 / 8) ** 8) / 8)
    assert sent(Routing(copies=8.0, chosen=4.0, groups=8.0)) == pytest.approx(leaving * 4 * (1 - (3 / 4) ** 8) / 8)
    few = 800.0 / 2  # two nodes: no token could reach more
    assert sent(Routing(copies=8.0, chosen=4.0, groups=8.0), 16) == pytest.approx(few * 2 * (1 - 0.5**8) / 8)
    wide = 800.0 * 15 / 16  # sixteen nodes, two to a group: eight of them
    assert sent(Routing(copies=8.0, chosen=4.0, groups=8.0), 128) == pytest.approx(wide * 8 * (1 - (7 / 8) ** 8) / 8)


def test_an_unfused_loss_takes_what_its_kernels_move() -> None:
    """Of 16-bit logits 19 passes forward and 7 backward in six kernels of 32 bits; 6 and 3 where one kernel does it."""

    def moved(engine: str) -> list[float]:
        head = next(part for part in program(table(engine=engine)).sections if part.key.role is SectionRole.HEAD)
        logits = TOKENS * VOCAB * 2
        ways = (head.forward, head.backward_input)
        return [
            float(sum(op.stream_bytes for op in ops if isinstance(op, Stream) and op.label.startswith("loss"))) / logits
            for ops in ways
        ]

    assert moved("megatron-2021") == [19.0, 7.0]
    assert moved("megatron-bridge") == [6.0, 3.0]
