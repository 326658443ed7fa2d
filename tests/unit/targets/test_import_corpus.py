"""Small files of our own for every dialect that is read, each with what it has to mean (`tests/data/import_corpus`)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.models.params import count
from ridgeline.targets.api import import_run, read_files
from ridgeline.targets.registry import detect

CORPUS = Path(__file__).parents[2] / "data" / "import_corpus"
BESIDE = {  # what the files of the corpus refer to
    "expected.toml",
    "megatron/words/README.md",
    "primus/requirements.txt",
    "primus/primus/configs/modules/megatron/pre_trainer.yaml",
    "verl/config/mine_grpo.yaml",
    "verl/older/requirements.txt",
    *(f"verl/older/verl/trainer/config/{name}.yaml" for name in ("ppo_trainer", "actor/common")),
    *(f"verl/older/verl/trainer/config/actor/{name}_actor.yaml" for name in ("dp", "megatron")),
    "verl/passed_on.sh",
    "zoo/README.md",
    "zoo/submit.sh",
}
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((CORPUS / "expected.toml").read_text())


def test_every_file_of_the_corpus_is_expected() -> None:
    there = {str(path.relative_to(CORPUS)) for path in CORPUS.rglob("*") if path.is_file()}
    named = {name.partition("::")[0] for name in EXPECTED}
    assert there - named == BESIDE


@pytest.mark.parametrize("name", EXPECTED)
def test_a_published_dialect_means_what_it_says(name: str) -> None:
    wanted = EXPECTED[name]
    source = CORPUS / name
    assert detect(read_files(source)).id == wanted["target"]
    given = wanted.get("import", {})
    if "refused" in wanted:
        with pytest.raises(InputError, match=wanted["refused"]):
            import_run(source)
        return
    found = import_run(source, system=wanted.get("on", f"{wanted.get('chips')}xh100-sxm"), **given)
    assert found.chips == wanted.get("chips", found.chips)
    assert any(wanted.get("assumed", "") in note for note in (*found.assumptions, ""))
    made = ridgeline.scenario(found.settings)
    _same_model(made, wanted)
    mesh = made.plan.mesh
    assert {axis: getattr(mesh, axis) for axis in wanted["mesh"]} == wanted["mesh"]
    asked = {key: getattr(made.workload, key, None) for key in wanted["workload"] if key != "microbatch"}
    asked |= {"microbatch": made.plan.microbatch} if "microbatch" in wanted["workload"] else {}
    assert asked == wanted["workload"]
    _same_plan(made.plan, wanted["plan"])
    assert list(made.placement) == wanted["plan"].get("placement", list(made.placement))
    assert ridgeline.predict(made).step_time_s > 0  # type: ignore[union-attr]


def _same_plan(plan: Any, wanted: dict[str, Any]) -> None:
    assert plan.precision.compute.id == wanted["compute"]
    assert plan.sharding.shard == wanted.get("shard", "none")
    assert plan.sharding.shard_degree == wanted.get("shard_degree", plan.sharding.shard_degree)
    recompute = wanted.get("recompute", "none")
    assert recompute in (str(plan.recompute), plan.recompute.kind)


def _same_model(made: Any, wanted: dict[str, Any]) -> None:
    if "model" in wanted:
        assert made.model.id.partition(" with ")[0] == wanted["model"]
    else:
        assert count(made.model).total / 1e9 == pytest.approx(wanted["params"], abs=0.006)
    if "mtp" in wanted:
        assert (made.model.mtp.depth if made.model.mtp else 0) == wanted["mtp"]
