"""Recompute that differs by stage or block, covered by one that does not."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline
from ridgeline.export.recompute import same_everywhere, same_in_stages
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario


def made(recompute: dict[str, Any], model: str = "llama3-8b") -> Scenario:
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
    scenario = made(recompute)
    assert str(same_everywhere(scenario)) == everywhere
    assert str(same_in_stages(scenario)) == in_stages


def test_blocks_that_predict_ahead_count() -> None:
    """DeepSeek-V3's prediction block follows the kind even where no layer does."""
    assert same_everywhere(made({"kind": "full", "layers": 0}, "deepseek-v3")).kind == "full"
    assert same_everywhere(made({"kind": "full", "layers": 0})).kind == "none"


def test_parts_are_kept() -> None:
    parts = ["norm", "mlp"]
    cover = same_everywhere(made({"kind": "selective", "parts": parts, "layers": 1}))
    assert cover == Recompute(kind="selective", parts=("norm", "mlp"))
