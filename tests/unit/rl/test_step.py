"""A step of post-training: its parts sum to it, and more of anything never makes it shorter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.core.documents import JsonObject
from ridgeline.core.encode import to_json
from ridgeline.plan.scenario import post_training
from ridgeline.plan.scenario_file import read_scenario, scenario
from ridgeline.rl import RlParameters, RlPrediction, predict_rl, rl_timeline, shipped_parameters
from ridgeline.rl.sync_time import weight_sync, weight_tensors
from ridgeline.sim import Impossible

EXAMPLES = Path(__file__).parents[3] / "examples"
BASE: JsonObject = {
    "model": "qwen2.5-7b",
    "system": "16xh100-sxm",
    "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 32, "samples": 8, "prompt_tokens": 512,
        "response_tokens": {"kind": "lognormal", "mean": 1000, "sigma": 0.8, "high": 8192}, "mini_batch": 16,
    },
    "plan": {
        "engine": "torchtitan", "shard": "zero3", "recompute": "full", "rl": {"pack": 16384},
        "serving": {"vllm": {"gpu_memory_utilization": 0.6}},
    },
}  # fmt: skip
SPLIT = ["plan.rl.train_chips=8"]
ASYNC = [*SPLIT, "plan.rl.placement=async", "plan.rl.staleness=1", "plan.rl.partial_rollouts=true"]


def predicted(*settings: str, parameters: RlParameters | None = None) -> RlPrediction:
    found = predict_rl(scenario(BASE, settings), parameters=parameters, draws=3)
    assert isinstance(found, RlPrediction), str(found)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        [], [*SPLIT, "plan.rl.placement=split"], [*SPLIT, "plan.rl.placement=one-step-off"], ASYNC,
        ["workload.roles.reference=true", "workload.roles.verifier.latency=2 s"],
        ["workload.algorithm=ppo", "workload.roles.critic=true"],
    ],
)  # fmt: skip
def test_exposed_seconds_sum_to_the_step(settings: list[str]) -> None:
    found = predicted(*settings)
    assert sum(found.exposed_seconds.values()) == pytest.approx(found.step_time_s)
    assert found.step_time_p90_s >= found.step_time_s
    assert found.interval.low < found.step_time_s < found.interval.high
    assert all(0 <= pool.idle_share < 1 for pool in found.idle)
    assert sum(found.staleness.shares.values()) == pytest.approx(1.0, abs=0.01)


def test_longer_answers_and_more_roles_take_longer() -> None:
    base = predicted().step_time_s
    assert predicted("workload.response_tokens.mean=2000").step_time_s > base
    assert predicted("workload.roles.reference=true").step_time_s > base
    assert predicted("workload.epochs=2").step_time_s > base
    assert predicted("workload.oversampling=1.5").step_time_s > base
    assert predicted("system=32xh100-sxm").step_time_s < base


def test_overlap_hides_the_shorter_side() -> None:
    split = predicted(*SPLIT, "plan.rl.placement=split")
    off = predicted(*SPLIT, "plan.rl.placement=one-step-off")
    assert off.step_time_s < split.step_time_s
    assert off.bound_by in ("rollout", "training")
    assert off.staleness.mean == 1.0
    free = predicted(*ASYNC)
    assert free.step_time_s <= off.step_time_s * 1.02


def test_staleness_gives_a_stream_places() -> None:
    tight = predicted(*ASYNC, "plan.rl.staleness=0.1", "plan.rl.train_chips=12")
    loose = predicted(*ASYNC, "plan.rl.staleness=3", "plan.rl.train_chips=12")
    assert loose.phase_seconds["generate"] < tight.phase_seconds["generate"]
    assert tight.staleness.mean <= 0.1 + 1.0
    assert loose.staleness.p90 <= 3


def test_agents_wait_for_tools() -> None:
    quiet = predicted("workload.agent.turns=4")
    slow = predicted("workload.agent.turns=4", "workload.agent.tool_latency=10 s")
    assert slow.phase_seconds["generate"] > quiet.phase_seconds["generate"] + 25
    free = predicted("workload.agent.turns=4", "workload.agent.tool_latency=10 s", "workload.agent.waiting=free")
    assert free.rollout is not None
    assert slow.rollout is not None
    assert free.rollout.prefilled > slow.rollout.prefilled


def test_drift_is_predicted_over_training() -> None:
    found = predicted("workload.drift={growth=2.0, steps=100}")
    assert [point.step for point in found.drift] == [0, 50, 100]
    seconds = [point.step_time_s for point in found.drift]
    assert seconds == sorted(seconds)


def test_memory_says_which_moment_runs_out() -> None:
    fine = predicted()
    assert fine.fits
    full = predicted(
        "plan.rl.free_engine=false", "plan.serving.vllm.gpu_memory_utilization=0.95", "plan.rl.offload=none"
    )
    assert not full.fits
    assert not full.memory.tightest.fits
    assert {moment.moment for moment in fine.memory.moments} == {
        "update", "log-probabilities", "generate", "weight sync",
    }  # fmt: skip


def test_a_sample_that_fits_no_cache_is_impossible() -> None:
    found = predict_rl(
        scenario(BASE, ["workload.response_tokens.high=2000000", "workload.response_tokens.mean=900000"])
    )
    assert isinstance(found, Impossible)
    assert "plan.rl.rollout" in {problem.path for problem in found.reasons}


def test_weight_sync_grows_with_pieces_and_methods_differ() -> None:
    built = post_training(scenario(BASE, [*ASYNC, "model=qwen3-30b-a3b"]))
    used = shipped_parameters()
    bucket = weight_sync(built, used)
    tensor = weight_sync(
        post_training(scenario(BASE, [*ASYNC, "model=qwen3-30b-a3b", "plan.rl.weight_sync=tensor"])), used
    )
    assert tensor.pieces == weight_tensors(built.model) > 18_000
    assert tensor.software_s == pytest.approx(tensor.pieces * used.tensor_s)
    assert bucket.seconds < tensor.seconds
    direct = weight_sync(
        post_training(scenario(BASE, [*ASYNC, "model=qwen3-30b-a3b", "plan.rl.weight_sync=direct"])), used
    )
    assert direct.seconds < bucket.seconds


def test_offline_algorithms_generate_nothing() -> None:
    found = predict_rl(read_scenario(EXAMPLES / "dpo-llama3.1-8b-8xh100.toml"))
    assert isinstance(found, RlPrediction)
    assert found.rollout is None
    assert found.weight_sync is None
    assert set(found.phase_seconds) == {"reference", "update", "other"}


def test_replay_is_a_share_of_a_step_and_costs_what_its_tokens_take() -> None:
    table = {**BASE, "workload": {"kind": "rl", "algorithm": "continual", "prompts": 64, "prompt_tokens": 512}}
    sources = "workload.sources={code={document_tokens=4000}, web={earlier=true, document_tokens=2000}}"

    def found(replay: str) -> RlPrediction:
        answer = predict_rl(scenario(table, (sources, f"workload.replay={replay}")))
        assert isinstance(answer, RlPrediction), str(answer)
        return answer

    quarter = found("{share=0.25}")
    assert quarter.replay is not None
    assert quarter.tokens == pytest.approx(64 * (0.75 * 4000 + 0.25 * 2000))
    assert quarter.replay.token_share == pytest.approx(500 / 3500)
    assert quarter.replay.seconds == pytest.approx(quarter.step_time_s * 500 / 3500)
    assert quarter.replay.steps_factor == pytest.approx(4 / 3)
    assert quarter.drift == ()
    falling = found("{share=0.5, final_share=0, steps=100}")
    assert falling.replay is not None
    assert [(point.step, point.mean_tokens) for point in falling.drift] == [(0, 3000), (50, 3500), (100, 4000)]
    assert falling.drift[0].step_time_s < falling.drift[1].step_time_s < falling.drift[2].step_time_s
    assert (falling.replay.first_share, falling.replay.share, falling.replay.last_share) == (0.5, 0.25, 0.0)
    assert to_json(quarter)["replay"]["share"] == 0.25
    assert predicted().replay is None


def test_answers_and_spans_are_written() -> None:
    found = predicted(*ASYNC)
    document = to_json(found)
    assert document["kind"] == "rl"
    assert document["phases"]["update"] > 0
    line = rl_timeline(found)
    assert set(line.processes) == {"train", "rollout"}
    assert line.span_s == pytest.approx(3 * found.step_time_s, rel=0.05)


def test_the_same_seed_gives_the_same_step() -> None:
    assert predicted().step_time_s == predicted().step_time_s
    assert predicted("workload.seed=1").step_time_s != predicted().step_time_s


def test_software_of_the_rollout_counts_steps_tokens_and_eager_layers() -> None:
    base = RlParameters()
    plain = predicted(parameters=base).phase_seconds["generate"]
    per_token = predicted(parameters=replace(base, token_s=1e-4)).phase_seconds["generate"]
    assert per_token > plain
    eager = ["plan.rl.rollout.eager=true"]
    without = predicted(*eager, parameters=base).phase_seconds["generate"]
    launched = predicted(*eager, parameters=replace(base, eager_layer_s=1e-3))
    assert launched.rollout is not None
    more = launched.phase_seconds["generate"] - without
    assert more == pytest.approx(28 * 1e-3 * launched.rollout.steps, rel=0.05)
    assert predicted(parameters=replace(base, eager_layer_s=1e-3)).phase_seconds["generate"] == plain


def test_tensors_are_converted_beside_the_wire() -> None:
    built = post_training(scenario(BASE, [*SPLIT, "plan.rl.placement=split"]))
    slow = weight_sync(built, RlParameters(convert_s=0.1))
    assert slow.seconds == pytest.approx(weight_tensors(built.model) * 0.1)
    free = weight_sync(built, RlParameters())
    assert free.seconds == max(free.gather_s, free.wire_s, free.load_s)
    one_by_one = post_training(scenario(BASE, [*SPLIT, "plan.rl.placement=split", "plan.rl.weight_sync.method=tensor"]))
    assert weight_sync(one_by_one, RlParameters(convert_s=0.1)).convert_s == 0


def test_weights_travel_as_the_trainer_has_them() -> None:
    settings = [*SPLIT, "plan.rl.placement=split"]
    full = weight_sync(post_training(scenario(BASE, settings)), RlParameters())
    narrow = weight_sync(post_training(scenario(BASE, [*settings, "plan.rl.rollout.precision=fp8"])), RlParameters())
    assert narrow.wire_s == full.wire_s
