"""Encoders, cross attention and heads: what is lowered is what the model's own counts say."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.core.errors import InputError
from ridgeline.ir.ops import Attend, MatMul
from ridgeline.lowering.program import lower
from ridgeline.models.facts import encoder_flops, forward_flops_per_token
from ridgeline.models.params import count
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.phase_prediction import PhasePrediction
from ridgeline.sim.prediction import Impossible, Prediction

T5 = {"model_type": "t5", "d_model": 1024, "d_ff": 4096, "num_layers": 8, "num_decoder_layers": 6, "num_heads": 16}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert"},
    "embedder": {"model_type": "bert", "architectures": ["BertModel"]},
    "tagger": {"model_type": "roberta", "architectures": ["RobertaForTokenClassification"]},
    "modernbert": {"model_type": "modernbert"},
    "t5": T5,
    "bart": {"model_type": "bart"},
    "whisper": {"model_type": "whisper", "d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12},
    "reward": {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "num_labels": 1},
}


def _made(name: str, system: str = "8xh100-sxm", **plan: Any) -> Scenario:
    work = {"seq": 256, "global_batch": 64}
    if name in ("t5", "bart"):
        work["encoder_seq"] = 512
    return scenario({"model": MODELS[name], "system": system, "workload": work, "plan": plan})


@pytest.mark.parametrize("name", MODELS)
def test_products_are_the_models_flops(name: str) -> None:
    made = _made(name, microbatch=4)
    program = lower(made)
    products = scores = params = 0.0
    for section, often in zip(program.sections, program.stages[0], strict=True):
        ops = [op for op in section.forward if isinstance(op, MatMul)]
        products += often * sum(2 * op.m * op.n * op.k * op.groups for op in ops)
        scores += often * sum(op.flops for op in section.forward if isinstance(op, Attend))
        params += often * (section.params + section.expert_params)
    each = forward_flops_per_token(made.model, 256, source=made.encoder_tokens)
    side = 4 * encoder_flops(made.model, made.encoder_tokens)
    own = 4 * 256 * each.total + side
    padded = 1.0 + (0.03 if made.model.speaks else 0.0)  # rows of a vocabulary that the engine adds
    assert own <= (products + scores) <= own * padded * 1.35  # of short sequences, tiles and heads of 64 do more
    assert products <= own * padded
    norm = made.model.norm.params(made.model.hidden) if made.model.norm else 0
    assert params + norm == count(made.model).total


def test_both_ways_sees_twice_as_much() -> None:
    """A bidirectional layer's scores are all pairs; the same model read causally has half of them."""
    two = _made("embedder")
    one = scenario(
        {
            "model": {**MODELS["embedder"], "is_decoder": True},
            "system": "8xh100-sxm", "workload": {"seq": 256, "global_batch": 64}, "plan": {},
        }
    )  # fmt: skip
    first, second = (forward_flops_per_token(made.model, 4096).scores for made in (two, one))
    assert first == 2 * second
    assert "all pairs" in predict(two).utilization.conventions[0]
    assert "half" in predict(one).utilization.conventions[0]


def test_a_longer_source_costs_the_encoder_and_every_cross_attention() -> None:
    base = {"model": T5, "system": "8xh100-sxm", "plan": {"microbatch": 8}}
    found = []
    for source in (256, 512, 1024):
        made = predict(scenario({**base, "workload": {"seq": 256, "global_batch": 64, "encoder_seq": source}}))
        assert isinstance(made, Prediction)
        found.append(made)
    times = [made.step_time_s for made in found]
    assert times[0] < times[1] < times[2] < 4 * times[0]
    assert max(stage.peak_bytes for stage in found[2].memory.stages) > found[0].memory.stages[0].peak_bytes
    assert 0.05 < found[2].utilization.mfu < found[2].utilization.hfu < 1


@pytest.mark.parametrize("plan", [{"tp": 4}, {"tp": 2, "sequence_parallel": False}, {"shard": "zero3"}])
@pytest.mark.parametrize("name", ["bert", "t5", "whisper"])
def test_data_sharded_and_tensor_parallel_plans_are_predicted(name: str, plan: dict[str, Any]) -> None:
    made = predict(_made(name, **plan))
    assert isinstance(made, Prediction)
    assert 0 < made.utilization.mfu <= made.utilization.hfu < 1


def test_stages_are_refused_where_every_layer_reads_the_encoder() -> None:
    assert isinstance(predict(_made("bert", pp=2, tp=2)), Prediction)
    for axis in ("pp", "cp"):
        with pytest.raises(InputError, match=f"plan.{axis}: got 2, expected 1: cross attention"):
            _made("t5", **{axis: 2})
    with pytest.raises(InputError, match="bert has no encoder"):
        scenario({
            "model": MODELS["bert"], "system": "1xh100-sxm",
            "workload": {"seq": 256, "global_batch": 8, "encoder_seq": 8}, "plan": {},
        })  # fmt: skip


def _phase(name: str, **work: Any) -> PhasePrediction | Impossible:
    made = scenario({"model": MODELS[name], "system": "1xh100-sxm", "workload": work, "plan": {"engine": "vllm"}})
    found = predict(made)
    assert isinstance(found, (PhasePrediction, Impossible))
    return found


def test_a_request_holds_what_cross_attention_made_of_its_source() -> None:
    found = _phase("whisper", kind="decode", context=64, batch=4)
    assert isinstance(found, PhasePrediction)
    assert found.memory.state_bytes == 4 * 1500 * 2 * 768 * 2  # layers x positions x keys and values x bf16
    first = _phase("whisper", kind="prefill", seq=4, batch=4)
    assert isinstance(first, PhasePrediction)
    assert first.step_time_s > found.step_time_s  # the encoder runs once, before the first token
    short = _phase("whisper", kind="prefill", seq=4, batch=4, encoder_seq=150)
    assert isinstance(short, PhasePrediction)
    assert short.step_time_s < first.step_time_s


def test_an_embedder_reads_and_does_not_write() -> None:
    found = _phase("embedder", kind="prefill", seq=512, batch=32)
    assert isinstance(found, PhasePrediction)
    assert found.fits
    assert found.memory.kv_bytes_per_token == 0
    refused = _phase("embedder", kind="decode", context=64)
    assert isinstance(refused, Impossible)
    assert "writes no tokens" in str(refused.reasons[0])
