"""A deployment that was searched for a target says nothing that the target cannot be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.errors import InputError
from ridgeline.plan.serving_plan import TensorrtLlmKnobs
from ridgeline.search.deployment.request import DeploymentRequest, deployment_cases
from ridgeline.search.deployment.space import Shape, shapes
from ridgeline.targets.plan_target import serving_target
from ridgeline.targets.registry import SERVE, TARGETS

ASKED: dict[str, Any] = {"on": "16xh100-sxm", "rate": 4.0, "ttft": "1s", "isl": 512, "osl": 64}


def _request(model: str, to: str, **more: Any) -> DeploymentRequest:
    return replace(DeploymentRequest.from_options(model, **ASKED, **more), target=serving_target(to))


def _lost(to: str, case: Any, shape: Shape) -> list[str]:
    """What an export loses of one replica, alone and with each setting that the search may turn."""
    turned = [
        shape,
        *(shape.with_setting(axis, one) for axis in ("tokens", "seqs", "prefix") for one in case.space.of(axis)),
    ]
    made = [TARGETS[to].write(one.scenario(case.scenario)) for one in turned]
    return [part.path for one in made for part in one.lost if part.path.startswith("plan.") and not part.yours]


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("to", SERVE)
def test_a_search_for_a_target_offers_what_it_can_be_told(to: str, model: str) -> None:
    cases = list(deployment_cases(_request(model, to)))
    assert {case.scenario.plan.engine for case in cases} == (
        {"vllm", "sglang", "tensorrt-llm"} if to == "dynamo" else {to}
    )
    for case in cases:
        offered = list(shapes(case.scenario, case.space))
        assert offered
        for shape in (offered[0], offered[len(offered) // 2], offered[-1]):
            assert _lost(to, case, shape) == []
        assert ("disaggregated" in case.space.split) == (to == "dynamo")


def test_tensorrt_is_searched_with_its_own_settings() -> None:
    (case,) = deployment_cases(_request("llama3-8b", "tensorrt-llm"))
    assert all(isinstance(one.knobs, TensorrtLlmKnobs) for one in shapes(case.scenario, case.space))


def test_what_is_pinned_and_cannot_be_told_is_refused_with_the_reason() -> None:
    asked = _request("llama3-8b", "vllm", settings=["plan.serving.pools=prefill+decode"])
    with pytest.raises(InputError, match="need a router between them"):
        list(deployment_cases(asked))
