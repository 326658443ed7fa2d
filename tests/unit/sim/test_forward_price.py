"""Engine steps in seconds: parts that sum, steps side by side, and what moves them in the right direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ridgeline
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import price_forward, serving_memory


def served(model: str = "llama3-8b", chips: int = 1, system: str = "h100-sxm", **plan: Any) -> Scenario:
    work = {"kind": "decode", "context": 1024, "batch": 8}
    table = {"model": model, "system": f"{chips}x{system}", "workload": work}
    return ridgeline.scenario({**table, "plan": {"engine": "vllm", **plan}})


BATCH = np.array([1.0, 8.0, 64.0, 256.0])
DECODES = forward_steps(decodes=BATCH, kv_tokens=1024 * BATCH)


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3", "gpt-oss-120b", "nemotron-h-8b", "qwen3-next-80b-a3b"])
def test_parts_of_a_step_sum_to_it(model: str) -> None:
    steps = forward_steps(
        prefill_tokens=[0, 2048, 512], prefill_pairs=[0, 2048 * 1024, 512 * 300], decodes=[16, 0, 16],
        kv_tokens=[16000, 0, 16000],
    )  # fmt: skip
    found = price_forward(served(model, 8, "h200-sxm", tp=8), steps)
    assert np.allclose(np.sum(list(found.parts.values()), axis=0), found.seconds)
    assert np.isfinite(found.seconds).all()
    assert (found.seconds > 0).all()
    assert found.seconds[2] > found.seconds[0]


def test_steps_priced_together_cost_what_each_costs_alone() -> None:
    together = price_forward(served(), DECODES).seconds
    alone = [price_forward(served(), forward_steps(decodes=b, kv_tokens=1024 * b)).seconds[0] for b in BATCH]
    assert np.allclose(together, alone, rtol=1e-12)


def test_a_decode_step_is_a_straight_line_in_the_tokens_it_reads() -> None:
    """Without a profile the cache is read at memory's rate: equal steps of tokens take equal time."""
    kv = np.array([10_000.0, 20_000.0, 30_000.0])
    found = price_forward(served(), forward_steps(decodes=16.0, kv_tokens=kv)).seconds
    assert found[2] - found[1] == pytest.approx(found[1] - found[0], rel=1e-6)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"precision": {"name": "bf16", "weights": "int8"}}, {}),
        ({"precision": {"name": "fp8", "weights": "fp8"}}, {}),
        ({"precision": {"name": "bf16", "kv": "fp8"}}, {}),
        ({"model": "llama3.2-1b"}, {"model": "llama3.2-1b", "graph": "none"}),
    ],
    ids=["int8 weights", "fp8", "fp8 cache", "graphs"],
)
def test_fewer_bytes_and_graphs_are_never_slower(less: dict[str, Any], more: dict[str, Any]) -> None:
    """Up to 64 requests; where the matrix unit limits, narrow weights that it does not multiply cost their widening."""
    fast, slow = (price_forward(served(**plan), DECODES).seconds[:3] for plan in (less, more))
    assert (fast <= slow * (1 + 1e-9)).all()
    assert fast.sum() < slow.sum()


def test_a_graph_pads_its_batch() -> None:
    """33 and 40 requests run in the same captured size; only their logits differ."""
    found = price_forward(served(), forward_steps(decodes=[33.0, 40.0, 41.0], kv_tokens=0.0)).parts["matmul"]
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_stages_of_a_pipeline_overlap() -> None:
    found = price_forward(served("llama3-70b", 4, tp=2, pp=2), DECODES)
    assert (found.interval_s < 0.6 * found.seconds).all()
    assert (price_forward(served("llama3-70b", 4, tp=4), DECODES).interval_s > 0).all()


def test_drafting_costs_less_than_the_steps_it_saves() -> None:
    plain = price_forward(served("deepseek-v3", 8, "h200-sxm", tp=8), DECODES).seconds
    drafted = served("deepseek-v3", 8, "h200-sxm", tp=8, speculation={"draft_tokens": 2, "acceptance": 0.8})
    found = price_forward(drafted, DECODES)
    assert (found.parts["draft"] > 0).all()
    assert drafted.plan.speculation is not None
    assert found.seconds[0] < drafted.plan.speculation.tokens_per_step * plain[0]


def test_memory_of_a_server() -> None:
    """Llama-3-8B in bf16: 16 GB of weights, 128 KiB a token; what is left of 0.9 of the chip holds tokens."""
    found = serving_memory(served())
    assert found.weights == pytest.approx(2 * 8.03e9, rel=0.01)
    assert found.kv_bytes_per_token == 32 * 8 * 2 * 128 * 2
    used = found.weights + found.activations + found.graphs + found.runtime
    assert found.kv_bytes == pytest.approx(0.9 * found.capacity - used)
    assert found.tokens == found.blocks * 16
    assert found.requests(2048) == pytest.approx(found.kv_bytes / (2048 * found.kv_bytes_per_token))


def test_memory_follows_formats_and_ranks() -> None:
    whole, split = serving_memory(served()), serving_memory(served(chips=4, tp=4))
    assert split.kv_bytes_per_token == whole.kv_bytes_per_token / 4
    narrow = serving_memory(served(precision={"name": "bf16", "kv": "fp8"}))
    assert narrow.kv_bytes_per_token == whole.kv_bytes_per_token / 2
    latent = serving_memory(served("deepseek-v3", 8, "h200-sxm", tp=8, precision={"name": "fp8", "weights": "fp8"}))
    assert latent.kv_bytes_per_token == 61 * 576 * 2  # every tensor rank holds the latents whole


def test_states_and_windows_bound_what_a_request_holds() -> None:
    hybrid = serving_memory(served("nemotron-h-8b"))
    assert hybrid.state_bytes > 0
    windows = serving_memory(served("gpt-oss-20b"))
    assert windows.state_bytes == pytest.approx(12 * 128 * 8 * 2 * 64 * 2)  # 12 layers of a window of 128
