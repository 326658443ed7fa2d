"""The three writings of a peak are one: by kind, the fast one of a search, and the linear forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.lowering.context import lowering_context
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.sim.closed_form.stage_mix import scenario_rank_mix, sum_by_count
from ridgeline.sim.memory.footprint import bytes_per_param, rank_footprint, rank_params, section_footprint
from ridgeline.sim.memory.peak import model_state, moment_bytes, peak_bytes, peak_form, peak_memory, transient

LORA = {"task": "lora", "lora": {"rank": 16, "targets": ["qkv", "out"]}}
CASES: dict[str, dict[str, Any]] = {
    "1f1b": {"plan": {"tp": 2, "pp": 4, "shard": "zero1"}},
    "interleaved, offloaded": {
        "plan": {
            "tp": 2, "pp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "recompute": "full",
            "engine": "torch-eager", "offload": {"activations": 0.25},
        }
    },
    "gpipe, weights sharded": {"plan": {"pp": 4, "shard": "zero3", "schedule": "gpipe"}},
    "gradients appear late": {"plan": {"tp": 8, "engine": "torch-eager"}, "global_batch": 4},
    "optimizer on the host": {"plan": {"tp": 4, "shard": "zero2", "offload": {"optimizer": 0.5}}},
    "adapters": {"plan": {"tp": 2, "pp": 2}, "work": LORA},
    "experts": {"model": "mixtral-8x7b", "plan": {"tp": 2, "pp": 2, "ep": 8, "shard": "zero1"}},
    "zbv": {"plan": {"tp": 2, "pp": 4, "schedule": "zbv"}},
    "compiled": {"plan": {"tp": 4, "engine": "maxtext"}},
}  # fmt: skip


def made(case: dict[str, Any]) -> Scenario:
    table = {
        "model": case.get("model", "llama3-8b"),
        "system": "32xh100-sxm",
        "workload": {"seq": 4096, "global_batch": case.get("global_batch", 128), **case.get("work", {})},
        "plan": case["plan"],
    }
    return scenario(table)


@pytest.mark.parametrize("name", CASES)
def test_one_peak(name: str) -> None:
    built = made(CASES[name])
    program, plans, ctx = lower(built), plan_columns([built]), lowering_context(built)
    needs, ranks, widths = section_footprint(ctx, program.sections, 1), None, bytes_per_param(ctx, built)
    ranks = scenario_rank_mix(built, program)
    form = peak_form(needs, ranks, plans, widths)
    rng = np.random.default_rng(3)
    for trial in range(4):
        mix = ranks if trial == 0 else replace(ranks, counts=rng.integers(0, 9, ranks.counts.shape).astype(np.float64))
        held = rank_footprint(needs, mix)
        state, moving = model_state(rank_params(needs, mix), plans, widths), transient(held, plans, widths)
        peaks = moment_bytes(state, moving, widths).sum(1).max(0)
        assert peak_bytes(state, moving, widths) == pytest.approx(peaks.max(0), rel=1e-12)
        sums = [*sum_by_count(mix.counts, needs.columns[:3]), held.saved.sum(0), held.layer]
        assert form.peak_bytes(np.stack(sums), np.zeros(1, dtype=np.int64)) == pytest.approx(peaks, rel=1e-12)
        if trial == 0:
            assert [stage.peak_bytes for stage in peak_memory(built, program).stages] == pytest.approx(peaks[:, 0])
