"""A recommended deployment says how sure it keeps its objective, and what would keep it surely."""

from __future__ import annotations

import io
from functools import cache

from rich.console import Console

from ridgeline.plan.engine import ENGINES
from ridgeline.report.deployment import draw_deployment
from ridgeline.search.deployment.promise import Promise, step_error
from ridgeline.search.deployment.recommendation import DeploymentAnswer, recommend_deployment
from ridgeline.search.deployment.request import DeploymentRequest
from ridgeline.search.recommendation import SearchTime

PINS = (
    "workload.requests=400",
    "plan.tp=1",
    "plan.serving.pools=none",
    "plan.serving.vllm.max_num_batched_tokens=2048",
)


@cache
def answer(rate: float = 40.0, tpot: str = "30ms", *pins: str, on: str = "8xh100-sxm") -> DeploymentAnswer:
    options = {"rate": rate, "isl": 1024, "osl": 128, "ttft": "500ms", "tpot": tpot, "settings": [*PINS, *pins]}
    return recommend_deployment(DeploymentRequest.from_options("llama3.1-8b", on=on, **options))  # type: ignore[arg-type]


def promised(found: DeploymentAnswer) -> Promise:
    assert found.promise is not None
    return found.promise


def sheet(found: DeploymentAnswer) -> str:
    console = Console(file=io.StringIO(), width=200)
    draw_deployment(found.report(SearchTime(seconds=0.0, cpu_seconds=0.0, explain_seconds=0.0)), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_errors_grow_with_the_chance() -> None:
    errors = [step_error(ENGINES["vllm"], chance) for chance in (0.05, 0.3, 0.5, 0.7, 0.95)]
    assert errors == sorted(errors)
    assert errors[2] == (1.0, 1.0)


def test_intervals_hold_what_is_predicted_and_more_replicas_are_surer() -> None:
    found = answer(40.0, "11ms", "plan.precision=bf16")
    promise, best = promised(found), found.best
    assert best is not None
    for limit in promise.limits:
        assert limit.low_s < best.prediction.kept[limit.metric].found < limit.high_s
    assert 0.5 <= promise.chance < promise.sure
    assert promise.replicas > best.candidate.replicas
    assert promise.chips == promise.replicas[0]
    words = f"{promise.replicas[0]} replicas ({promise.chips} chips) keep it with 90%"
    assert words in sheet(found)


def test_a_replica_holds_no_less_than_its_share_of_what_was_chosen() -> None:
    for found in (answer(40.0, "12ms", "plan.precision=bf16"), answer(2.0)):
        assert found.best is not None
        (pool,) = found.best.pools
        assert pool.holds * pool.replicas >= found.best.rate
        assert pool.holds >= pool.capacity.rate


def test_an_easy_objective_is_kept_surely_and_narrow_formats_stand_in_the_first_lines() -> None:
    found = answer(2.0)
    assert promised(found).chance == 0.95
    lines = sheet(found).splitlines()
    assert any("chance of keeping the objective: at least 95%" in line for line in lines)
    assert any("weights fp8" in line and "chosen here" in line for line in lines[:5])
    assert "+0.0%" not in sheet(found)


def test_what_more_replicas_cannot_help_is_said() -> None:
    found = answer(1.0, "6.4ms", "plan.precision=bf16")
    promise = promised(found)
    assert promise.chips is None
    assert "more replicas cannot help" in promise.obstacle
    assert promise.obstacle in sheet(found)


def test_without_an_objective_nothing_is_promised() -> None:
    settings = [*PINS, "plan.precision=bf16"]
    request = DeploymentRequest.from_options(
        "llama3.1-8b", on="1xh100-sxm", rate=2.0, isl=512, osl=64, settings=settings
    )
    found = recommend_deployment(request)
    assert found.promise is None
    assert "chance" not in sheet(found)


def test_chips_that_are_used_up_are_an_obstacle() -> None:
    found = answer(28.0, "12ms", "plan.precision=bf16", on="2xh100-sxm")
    assert promised(found).obstacle.startswith("even 2 x")
