"""What the house describes once stays described once."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from ridgeline.ir.fusions import FUSIONS, POINTWISE
from ridgeline.models.blocks import Mixer

SOURCE = Path(__file__).parents[2] / "src" / "ridgeline"
MIXERS = {mixer.__name__ for mixer in get_args(Mixer)}
DESCRIBED = {"models/mixer_parts.py", "runtime/train/layer.py"}


def cases(path: Path) -> set[str]:
    """Names of the classes that a module's `match` statements tell apart."""
    patterns = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.MatchClass))
    return {ast.unparse(pattern.cls).rpartition(".")[2] for pattern in patterns}


def test_a_mixer_is_matched_where_it_is_described_and_where_torch_computes_it() -> None:
    """Everything else walks over its parts."""
    matching = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if len(cases(path) & MIXERS) > 1}
    assert matching <= DESCRIBED


def test_lowering_knows_no_fusion_by_name() -> None:
    """It asks `ir.fusions` whether an op is joined."""
    compared = [
        f"{path.name}:{node.lineno}"
        for path in (SOURCE / "lowering").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and any(ast.unparse(side).endswith(".fuses") for side in node.comparators)
    ]
    assert not compared


def test_every_pointwise_op_is_joined_by_some_fusion() -> None:
    joined = {op for fusion in FUSIONS.values() for op in fusion.joins}
    assert {op for op in POINTWISE if op != "gated activation"} <= joined
