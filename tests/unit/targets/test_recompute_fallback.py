"""Recompute that a target cannot say is written as more of it, never less, with what that costs."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import export, import_run
from ridgeline.targets.dialects.megatron.collect import from_script
from ridgeline.targets.recompute_fallback import nearest, normal_recompute, price, same_everywhere, same_in_stages

PARTS = ("attention", "norm", "mlp")
STRENGTH = ("none", "selective", "full")


def made(recompute: Any, model: str = "llama3-8b", engine: str = "megatron-core", **plan: Any) -> Scenario:
    chip = "ascend-910b2" if engine == "mindspeed" else "h100-sxm"
    table = {"tp": 2, "pp": 4, "shard": "zero1", "engine": engine, "recompute": recompute, **plan}
    return ridgeline.scenario(
        {"model": model, "system": f"32x{chip}", "workload": {"seq": 4096, "global_batch": 64}, "plan": table}
    )


def options_of(scenario: Scenario, to: str) -> dict[str, Any]:
    found = from_script("launch.sh", export(scenario, to=to).files["launch.sh"])
    assert found is not None
    return dict(found.options)


@pytest.mark.parametrize(
    ("given", "kind", "layers", "parts"),
    [
        ({"kind": "full", "layers": [4, 2, 0, 0]}, "full", 4, None),
        ({"kind": "full", "layers": [8, 8, 8, 8]}, "full", None, None),
        ({"kind": "full", "layers": [0, 0, 0, 0]}, "none", None, None),
        ({"kind": "full", "layers": [2, 2, 2, 2]}, "full", 2, None),
        ({"kind": "full", "layers": [4, 2, 0, 0], "rest": "selective"}, "full", None, None),
        ({"kind": "full", "layers": [0, 0, 0, 0], "rest": "selective"}, "selective", None, ("attention",)),
        ({"kind": "selective", "parts": ["norm"], "layers": [1, 0, 0, 0]}, "selective", None, ("norm",)),
        ({"kind": "selective", "parts": ["activation"]}, "selective", None, ("mlp",)),
        ({"kind": "selective", "parts": ["mixer"], "layers": 3}, "full", 3, None),
        ({"kind": "selective", "parts": ["latent-up"]}, "none", None, None),
        ({"kind": "none", "blocks": {"0": "full"}}, "full", None, None),
    ],
)
def test_the_least_that_is_not_less(given: Any, kind: str, layers: int | None, parts: tuple[str, ...] | None) -> None:
    found = nearest(made(given), PARTS)
    assert (found.kind, found.layers) == (kind, layers)
    assert parts is None or found.parts == parts


def test_no_layer_recomputes_less_than_planned() -> None:
    counts = [(a, b, c, d) for a in (0, 3, 8) for b in (0, 2) for c in (0, 1) for d in (0, 8)]
    for kind, rest in (("full", "none"), ("full", "selective"), ("selective", "none")):
        for layers in counts:
            scenario = made({"kind": kind, "layers": list(layers), "rest": rest})
            found = nearest(scenario, PARTS)
            for stage, held in enumerate(scenario.placement):
                for layer in range(held):
                    planned = kind if layer < layers[stage] else rest
                    written = found.kind if layer < found.layers_of(stage, held) else found.rest
                    assert STRENGTH.index(written) >= STRENGTH.index(planned)


def test_what_is_written_instead_is_named_with_its_cost() -> None:
    scenario = made({"kind": "full", "layers": [4, 2, 0, 0]})
    lost = {part.path: part.why for part in export(scenario, to="megatron").lost}
    assert set(lost) == {"plan.recompute.layers"}
    assert "full (4 layers of each stage)" in lost["plan.recompute.layers"]
    assert "longer by" in lost["plan.recompute.layers"]
    found = options_of(scenario, "megatron")
    assert (found["recompute-method"], found["recompute-num-layers"]) == ("block", 4)


def test_the_written_plan_still_fits_and_the_cost_is_the_predictions() -> None:
    scenario = made({"kind": "full", "layers": [4, 2, 0, 0]})
    written = ridgeline.scenario(import_run(export(scenario, to="megatron").files).settings)
    before, after = ridgeline.predict(scenario), ridgeline.predict(written)
    assert after.memory.peak_bytes <= before.memory.peak_bytes
    assert f"{after.step_time_s / before.step_time_s - 1:.1%}" in price(scenario, written.plan.recompute)


def test_the_same_in_other_words_is_no_loss() -> None:
    for given in ({"kind": "full", "layers": [8, 8, 8, 8]}, {"kind": "full", "layers": [3, 3, 3, 3]}):
        assert export(made(given), to="megatron").lost == ()
    assert normal_recompute(made({"kind": "full", "layers": [8, 8, 8, 8]})) == Recompute(kind="full")


def test_mindspeed_has_two_ways_in_one_stage() -> None:
    given = {"kind": "full", "layers": 2, "rest": "selective", "parts": ["activation"]}
    scenario = made(given, engine="mindspeed")
    assert export(scenario, to="mindspeed").lost == ()
    found = options_of(scenario, "mindspeed")
    assert found["recompute-activation-function"] is True
    assert (found["recompute-method"], found["recompute-num-layers"]) == ("block", 2)
    again = ridgeline.scenario(import_run(export(scenario, to="mindspeed").files).settings)
    assert again.plan.recompute == scenario.plan.recompute
    some = made({"kind": "selective", "parts": ["activation"], "layers": 3}, engine="mindspeed")
    assert options_of(some, "mindspeed")["recompute-activation-function-num-layers"] == 3
    again = ridgeline.scenario(import_run(export(some, to="mindspeed").files).settings)
    assert again.plan.recompute == some.plan.recompute


def staged(recompute: dict[str, Any], model: str = "llama3-8b") -> Scenario:
    table = {"model": model, "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}}
    return ridgeline.scenario({**table, "plan": {"pp": 4, "recompute": recompute}})


@pytest.mark.parametrize(
    ("recompute", "everywhere", "in_stages"),
    [
        ({"kind": "full"}, "full", "full"),
        ({"kind": "none"}, "none", "none"),
        ({"kind": "full", "layers": [3, 2, 1, 0]}, "full", "full (3 layers of each stage)"),
        ({"kind": "full", "layers": [8, 2, 1, 0]}, "full", "full"),
        ({"kind": "full", "layers": [0, 0, 0, 0]}, "none", "none"),
        ({"kind": "full", "layers": [0, 0, 0, 0], "rest": "selective"}, "selective", "selective"),
        ({"kind": "full", "layers": [1, 0, 0, 0], "rest": "selective"}, "full", "full"),
        ({"kind": "selective", "layers": [1, 0, 0, 0]}, "selective", "selective"),
        ({"kind": "full", "blocks": {"0": "none"}}, "full", "full"),
        ({"kind": "none", "blocks": {"0": "full"}}, "full", "full"),
    ],
)
def test_the_cover(recompute: dict[str, Any], everywhere: str, in_stages: str) -> None:
    scenario = staged(recompute)
    assert str(same_everywhere(scenario)) == everywhere
    assert str(same_in_stages(scenario)) == in_stages


def test_blocks_that_predict_ahead_count() -> None:
    """DeepSeek-V3's prediction block follows the kind even where no layer does."""
    assert same_everywhere(staged({"kind": "full", "layers": 0}, "deepseek-v3")).kind == "full"
    assert same_everywhere(staged({"kind": "full", "layers": 0})).kind == "none"


def test_parts_are_kept() -> None:
    parts = ["norm", "mlp"]
    cover = same_everywhere(staged({"kind": "selective", "parts": parts, "layers": 1}))
    assert cover == Recompute(kind="selective", parts=("norm", "mlp"))
