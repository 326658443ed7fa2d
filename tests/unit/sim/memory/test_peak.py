"""Peak memory by kind, each expectation worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.lowering.program import lower
from ridgeline.models.params import count
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.plan.schedules import build, peak_in_flight
from ridgeline.sim.closed_form.stage_mix import rank_mix, virtual_stages_by_rank
from ridgeline.sim.memory.footprint import PARTS
from ridgeline.sim.memory.peak import KINDS, Memory, in_flight, peak_memory

HIDDEN, WIDE, HEADS, KV, DIM, LAYERS, VOCAB = 4096, 14336, 32, 8, 128, 32, 128256  # llama3-8b
MATRICES = HIDDEN * (HEADS + 2 * KV) * DIM + HEADS * DIM * HIDDEN + 3 * HIDDEN * WIDE  # of one layer
LAYER = MATRICES + 2 * HIDDEN
ENDS = 2 * VOCAB * HIDDEN + HIDDEN  # embedding, head, final norm


def made(system: str = "8xh100-sxm", batch: int = 64, work: Mapping[str, Any] | None = None, **plan: Any) -> Scenario:
    workload = {"seq": 4096, "global_batch": batch, **(work or {})}
    return scenario({"model": "llama3-8b", "system": system, "workload": workload, "plan": plan})


def memory(built: Scenario) -> Memory:
    return peak_memory(built, lower(built))


def held(built: Scenario, kind: str, stage: int = 0) -> float:
    return memory(built).stages[stage].bytes_by_kind[kind]


def state(built: Scenario, stage: int = 0) -> Mapping[str, float]:
    return memory(built).stages[stage].state


def flying(name: str, stages: int, many: int, chunks: int) -> list[int]:
    return [int(held) for held in np.asarray(in_flight(name, stages, many, chunks, np.arange(float(stages))))]


def test_parameters_are_all_there() -> None:
    built = made("1xh100-sxm")
    total = LAYERS * LAYER + ENDS
    assert total == count(built.model).total
    assert state(built) == {"weights": 2 * total, "gradients": 4 * total, "optimizer": 12 * total}


def test_kinds_sum_to_the_peak() -> None:
    stage = memory(made()).fullest
    assert tuple(stage.bytes_by_kind) == KINDS
    assert sum(stage.bytes_by_kind.values()) == stage.peak_bytes


def test_zero_divides_what_it_says() -> None:
    """none w + g + o, zero1 o/d, zero2 g/d too, zero3 all; d = 8."""
    total = LAYERS * LAYER + ENDS
    for shard, parts in {"none": (1, 1, 1), "zero1": (1, 1, 8), "zero2": (1, 8, 8), "zero3": (8, 8, 8)}.items():
        built = made(shard=shard)
        found = tuple(state(built).values())
        assert found == pytest.approx((2 * total / parts[0], 4 * total / parts[1], 12 * total / parts[2])), shard


def test_twice_the_ranks_halve_the_shard_and_hybrid_keeps_it() -> None:
    small, large = made(shard="zero1"), made("16xh100-sxm", shard="zero1")
    assert held(large, "optimizer") == held(small, "optimizer") / 2
    hybrid = made("16xh100-sxm", shard="zero1", shard_degree=8)
    assert held(hybrid, "optimizer") == held(small, "optimizer")
    assert held(large, "weights") == held(small, "weights")


def test_tensor_parallel_splits_matrices_but_not_norms() -> None:
    norms = LAYERS * 2 * HIDDEN + HIDDEN
    matrices = LAYERS * MATRICES + 2 * VOCAB * HIDDEN
    for tp in (1, 2, 4):
        assert held(made(tp=tp), "weights") == pytest.approx(2 * (matrices / tp + norms))


def test_experts_are_split_over_their_own_ranks() -> None:
    """Mixtral: 8 experts over ep = 8 leave one a rank; with edp = 1 nothing of them can be sharded further."""
    built = scenario(
        {
            "model": "mixtral-8x7b",
            "system": "8xh100-sxm",
            "workload": {"seq": 4096, "global_batch": 8},
            "plan": {"ep": 8, "shard": "zero1"},
        }
    )
    parts = count(built.model)
    dense, mine = parts.total - parts.experts, parts.experts / 8
    assert held(built, "weights") == pytest.approx(2 * (dense + mine))
    assert held(built, "optimizer") == pytest.approx(12 * (dense / 8 + mine))


def test_offload() -> None:
    base = made(shard="zero1")
    moved = made(shard="zero1", offload={"optimizer": 0.75, "activations": 0.5})
    assert held(moved, "optimizer") == held(base, "optimizer") / 4
    assert held(moved, "activations") == held(base, "activations") / 2


def test_activations_by_hand() -> None:
    """One layer, Megatron, flash: input, two norms and what lies between, q k v and out, gate, up and their product."""
    tokens = 4096
    layer = 2 * tokens * (4 * HIDDEN + (2 * HEADS + 2 * KV) * DIM + 3 * WIDE)
    ends = 8 * tokens + 2 * tokens * HIDDEN  # token numbers, and the head's input
    built = made("1xh100-sxm", batch=1, microbatch=1)
    assert held(built, "activations") == pytest.approx(LAYERS * layer + ends)
    parts = memory(built).fullest.activations
    sizes = (HIDDEN, (2 * HEADS + 2 * KV) * DIM, 3 * WIDE, 3 * HIDDEN)
    expected = [2 * tokens * LAYERS * size + ends * (place == 0) for place, size in enumerate(sizes)]
    assert [parts[part] for part in PARTS] == pytest.approx(expected)


def test_full_recompute_keeps_a_layers_input_only() -> None:
    tokens = 4096
    built = made("1xh100-sxm", batch=1, recompute="full")
    assert held(built, "activations") == pytest.approx(LAYERS * 2 * tokens * HIDDEN + 8 * tokens + 2 * tokens * HIDDEN)
    only_half = made("1xh100-sxm", batch=1, recompute={"kind": "full", "layers": 16})
    full, none = held(built, "activations"), held(made("1xh100-sxm", batch=1), "activations")
    assert held(only_half, "activations") == pytest.approx((full + none) / 2)


def test_microbatches_do_not_add_up_without_a_pipeline() -> None:
    assert held(made(batch=8), "activations") == held(made(batch=64), "activations")
    assert held(made(microbatch=2), "activations") == 2 * held(made(microbatch=1), "activations")


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zbv", "dualpipe-v"])
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_in_flight_is_what_the_tables_hold(name: str, stages: int) -> None:
    chunks = {"interleaved": 3, "zbv": 2, "dualpipe-v": 2}.get(name, 1)
    for many in (2 * stages, 3 * stages, 8 * stages):
        table = build(name, stages=stages, microbatches=many, chunks=chunks)
        assert tuple(flying(name, stages, many, chunks)) == peak_in_flight(table)


def test_in_flight_of_few_microbatches_is_what_the_tables_hold() -> None:
    for stages in (2, 3, 4, 8):
        for many in range(1, 2 * stages):
            for name, chunks in (("gpipe", 1), ("1f1b", 1), ("zero-bubble-h1", 1), ("zbv", 2)):
                table = build(name, stages=stages, microbatches=many, chunks=chunks)
                assert tuple(flying(name, stages, many, chunks)) == peak_in_flight(table)


def test_first_stage_of_1f1b_holds_as_many_as_there_are_stages() -> None:
    """8 layers a stage; stage 0 holds 4 microbatches, stage 3 one (and the head's input, and no token numbers)."""
    tokens = 4096
    layer = 2 * tokens * (4 * HIDDEN + (2 * HEADS + 2 * KV) * DIM + 3 * WIDE)
    stages = memory(made(pp=4)).stages
    assert [stage.in_flight for stage in stages] == [4, 3, 2, 1]
    held_by = [stage.bytes_by_kind["activations"] for stage in stages]
    assert held_by == pytest.approx(
        [4 * (8 * layer + 8 * tokens), 3 * 8 * layer, 2 * 8 * layer, 8 * layer + 2 * tokens * HIDDEN]
    )


def test_virtual_stages_of_a_v() -> None:
    assert virtual_stages_by_rank(4, 2, "zbv") == ((0, 7), (1, 6), (2, 5), (3, 4))
    assert virtual_stages_by_rank(2, 2, "interleaved") == ((0, 2), (1, 3))


def test_equal_ranks_of_a_v_are_asked_by_their_last() -> None:
    """Middle ranks hold the same layers; of few microbatches the last of them holds the most activations.

    In a pipeline that only goes down it is the first.
    """
    stages = ((1, 0, 1), *((0, 0, 2),) * 6, (0, 1, 1))
    assert rank_mix(stages, virtual_stages_by_rank(4, 2, "zbv"), fullest=True).number.tolist() == [0, 3]
    assert rank_mix(stages, virtual_stages_by_rank(4, 2, "interleaved"), fullest=True).number.tolist() == [0, 1, 3]


def test_tied_output_on_another_stage_is_a_second_copy() -> None:
    table = {"system": "2xh100-sxm", "workload": {"seq": 1024, "global_batch": 8}, "plan": {"pp": 2}}
    tied = scenario({"model": "llama3.2-1b", **table})
    spec = tied.model
    assert spec.embedding.tied
    first, last = (state(tied, rank)["weights"] for rank in (0, 1))
    assert first == last - 2 * spec.hidden  # equal layers, the same matrix at both ends, and the final norm


def test_adapters_by_hand() -> None:
    """Rank 16 on query-key-value and output: 16 (in + out) each, in every layer; gradients in 32 bits."""
    built = made("1xh100-sxm", batch=1, work={"task": "lora"})
    each = 16 * (HIDDEN + (HEADS + 2 * KV) * DIM) + 16 * (HIDDEN + HEADS * DIM)
    assert state(built)["gradients"] == 4 * LAYERS * each
    assert state(built)["optimizer"] == 12 * LAYERS * each
    assert state(built)["weights"] == 2 * (LAYERS * LAYER + ENDS)


def test_narrow_frozen_weights_take_their_own_width() -> None:
    wide = made("1xh100-sxm", batch=1, work={"task": "lora"})
    narrow = made("1xh100-sxm", batch=1, work={"task": "lora"}, precision="fp8")
    assert held(narrow, "weights") == held(wide, "weights") / 2
    trained = made("1xh100-sxm", batch=1, precision="fp8")  # as they are and transposed: as much as wide ones
    assert held(trained, "weights") == held(wide, "weights")
    assert held(trained, "activations") < held(made("1xh100-sxm", batch=1), "activations")


def test_capacity_is_what_the_driver_leaves() -> None:
    built = made()
    chip = built.system.chip
    assert memory(built).capacity_bytes == chip.hbm.usable.value  # type: ignore[union-attr]
    bare = replace(chip, hbm=replace(chip.hbm, usable=None))
    without = replace(built, system=replace(built.system, chip=bare))
    assert memory(without).capacity_bytes == chip.hbm.capacity.value  # type: ignore[union-attr]


def test_gradients_appear_late_where_nothing_accumulates() -> None:
    """Plain torch, one microbatch: at the loss there are no gradients yet; with two microbatches there are."""
    once = made("1xh200-sxm", batch=1, engine="torch-eager")
    twice = made("1xh200-sxm", batch=2, engine="torch-eager")
    assert memory(once).fullest.moment == "loss"
    assert held(once, "gradients") == 0
    assert held(twice, "gradients") == 2 * (LAYERS * LAYER + ENDS)


def test_offload_needs_room_on_the_host() -> None:
    """Optimizer states of 8 chips: 8 x 12 bytes a parameter; a host of 512 GiB does not hold them, one of 2 TB does."""
    built = made(offload=["optimizer"])
    total = LAYERS * LAYER + ENDS
    assert memory(built).host_bytes == 8 * 12 * total
    assert memory(built).host_capacity_bytes == 2e12
    room = Quoted(value=512 * 2**30, evidence=Evidence.ASSUMED, source="here")
    small = replace(built, system=replace(built.system, host_memory=room))
    assert memory(small).fits is False
    assert memory(small).headroom_bytes == memory(built).headroom_bytes
