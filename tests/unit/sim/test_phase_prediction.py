"""Prefill and decode as predictions: steps, rates, cost, the curve, and what is refused."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.sim import Impossible
from ridgeline.sim.phase_prediction import PhasePrediction, _distinct_steps, predict_phase


def predicted(workload: dict[str, Any], model: str = "llama3-70b", **plan: Any) -> PhasePrediction:
    table = {"model": model, "system": "4xh100-sxm", "workload": workload, "plan": {"tp": 4, **plan}}
    found = predict_phase(ridgeline.scenario(table))
    assert isinstance(found, PhasePrediction)
    return found


DECODE = {"kind": "decode", "context": 2048, "batch": 32}


def test_a_decode_step_and_its_rates() -> None:
    found = predicted(DECODE)
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.step_time_s)
    assert found.tokens_per_s == pytest.approx(32 / found.step_time_s)
    assert found.tokens_per_s_per_user == pytest.approx(1 / found.step_time_s)
    assert found.tokens_per_s_per_chip == pytest.approx(found.tokens_per_s / 4)
    price = found.scenario.system.chip.price
    assert price is not None
    hourly = price.value * 4
    assert found.cost_per_million_tokens_usd == pytest.approx(hourly / 3600 / found.tokens_per_s * 1e6)
    assert found.interval.low < found.step_time_s < found.interval.high


def test_the_curve_trades_users_for_chips() -> None:
    curve = predicted(DECODE).curve
    assert len(curve) > 8
    assert curve[0].batch == 1
    for before, after in pairwise(curve):
        assert after.tokens_per_s_per_user <= before.tokens_per_s_per_user * 1.001
        assert after.tokens_per_s_per_chip > before.tokens_per_s_per_chip


def test_a_prompt_in_chunks_and_a_cached_prefix() -> None:
    whole = predicted({"kind": "prefill", "seq": 16384, "chunk": 0})
    chunks = predicted({"kind": "prefill", "seq": 16384, "chunk": 2048})
    usual = predicted({"kind": "prefill", "seq": 16384})
    cached = predicted({"kind": "prefill", "seq": 16384, "cached": 8192})
    assert (whole.steps, chunks.steps, usual.steps, cached.steps) == (1, 8, 2, 1)
    assert whole.step_time_s < chunks.step_time_s
    assert usual.step_time_s / 2 < cached.step_time_s < usual.step_time_s  # its half sees twice as much
    assert cached.tokens == 8192


@pytest.mark.parametrize(
    ("many", "own", "cached", "chunk"),
    [(1, 6144, 2048, 8192), (13, 6144, 2048, 8192), (7, 100, 3, 7), (50, 7, 0, 100), (9, 64, 5, 64), (3, 12, 1, 36)],
)
def test_distinct_steps_are_those_of_packing_token_by_token(many: int, own: int, cached: int, chunk: int) -> None:
    packed = []
    for begin in range(0, many * own, chunk):
        tokens = range(begin, min(begin + chunk, many * own))
        pairs = sum(cached + token % own + 0.5 for token in tokens)
        packed.append((float(len(tokens)), pairs, float(len({token // own for token in tokens}))))
    rows = _distinct_steps(many, own, cached, chunk)
    assert Counter({row[:3]: int(row[3]) for row in rows}) <= Counter(packed)
    assert sum(row[3] for row in rows) == len(packed)
    assert rows[-1] == (*packed[-1], 1.0)
    assert [row[:3] for row in rows[:-1]] == packed[: len(rows) - 1]
    assert sum(row[1] * row[3] for row in rows) == sum(step[1] for step in packed)


def test_a_huge_batch_is_priced_by_its_distinct_steps() -> None:
    prompts = {"kind": "prefill", "seq": 8192, "cached": 2048, "chunk": 8192}
    few, many = predicted({**prompts, "batch": 40}), predicted({**prompts, "batch": 4_000_000_000})
    assert (few.steps, many.steps) == (30, 3_000_000_000)
    assert many.step_time_s == pytest.approx(1e8 * few.step_time_s)
    with pytest.raises(InputError, match=r"workload\.chunk"):
        predicted({**prompts, "seq": 102_401, "chunk": 1})


def test_what_does_not_fit_says_so() -> None:
    assert not predicted({**DECODE, "batch": 4096, "context": 32768}).fits
    found = predict_phase(
        ridgeline.scenario(
            {"model": "llama3-70b", "system": "1xh100-sxm", "workload": DECODE, "plan": {"engine": "vllm"}}
        )
    )
    assert isinstance(found, PhasePrediction)
    assert not found.fits
    assert found.memory.kv_bytes < 0


def test_a_drafter_that_the_model_lacks_is_refused() -> None:
    table = {"model": "llama3-70b", "system": "4xh100-sxm", "workload": DECODE}
    found = predict_phase(ridgeline.scenario({**table, "plan": {"tp": 4, "speculation": {"draft": "mtp"}}}))
    assert isinstance(found, Impossible)
    assert found.reasons[0].path == "plan.speculation.draft"
    assert "eagle" in found.reasons[0].todo


def test_speculation_gains_tokens() -> None:
    plain, drafted = predicted(DECODE), predicted(DECODE, speculation={"draft": "ngram", "draft_tokens": 2})
    assert drafted.tokens == pytest.approx(32 * (1 + 0.7 + 0.49))
    assert plain.step_time_s < drafted.step_time_s < 2 * plain.step_time_s
