"""Exports for MaxText against its own package: the configuration class, the model files, the list of options.

Skipped where the package is absent. Its wheel asks for a newer Python and an accelerator's JAX; its configuration reads
on a CPU and Python 3.11 from the unpacked wheel beside jax, flax, orbax-checkpoint, omegaconf, pydantic, jinja2,
psutil, pathwaysutils, fastapi and requests. RIDGELINE_MAXTEXT names the folder of the unpacked wheel where it is not
importable; the list of options and the model files need no more than that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.models.load import MODELS
from ridgeline.models.spec import Attention, Mlp, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.dialects.maxtext.write import MODELS_NAMED, VOCABULARIES, devices_of, inside
from ridgeline.targets.options import options
from ridgeline.targets.registry import TARGETS
from tools.record.maxtext import record

PLANS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama3-8b", "64xh100-sxm", {"shard": "zero3"}),
    ("llama3-8b", "64xh100-sxm", {"shard": "none", "recompute": "full"}),
    ("llama3-8b", "64xh100-sxm", {"shard": "zero1", "tp": 2, "pp": 2, "microbatch": 2}),
    ("llama3-8b", "64xh100-sxm", {"shard": "zero2", "shard_degree": 4, "pp": 4, "schedule": "interleaved"}),
    ("llama3-8b", "64xh100-sxm", {"shard": "zero1", "pp": 16, "microbatch": 8}),
    ("llama3.1-405b", "512xh100-sxm", {"shard": "zero1", "tp": 8, "pp": 4, "recompute": "full"}),
    ("llama3-70b", "64xh100-sxm", {"shard": "zero3", "cp": 2, "cp_kind": "all-to-all", "tp": 4, "precision": "fp8"}),
    ("llama3-70b", "256xgb200-nvl72", {"shard": "zero3", "precision": "nvfp4", "tp": 2}),
    ("llama3-70b", "tpu-v5p:4x4x4", {"shard": "zero3", "cp": 2, "tp": 4}),
    ("llama3-70b", "tpu-v5p:4x4x4", {"shard": "zero3", "cp": 2, "tp": 4, "cp_kind": "all-to-all"}),
    ("llama3-70b", "tpu-v5p:4x4x4", {"shard": "zero3", "cp": 16, "cp_kind": "all-to-all"}),
    ("gpt-oss-20b", "tpu-v5p:4x4x4", {"shard": "zero3", "cp": 2}),
    ("llama3-70b", "1024xtpu-v5e", {"shard": "zero3", "recompute": "full", "precision": "int8"}),
    ("llama3-70b", "tpu-v7x:4x4x4", {"shard": "zero3", "recompute": "full", "microbatch": 2}),
    ("llama3-70b", "tpu-v7x:4x4x4", {"shard": "zero1", "tp": 4, "recompute": "full"}),
    ("deepseek-v3", "tpu-v5p:8x8x8", {"shard": "zero3", "ep": 8, "recompute": "full"}),
    (
        "deepseek-v3",
        "512xh100-sxm",
        {"shard": "zero1", "ep": 8, "pp": 4, "recompute": "full", "offload": "activations"},
    ),
    ("mixtral-8x7b", "256xtpu-v6e", {"shard": "zero3", "ep": 8, "recompute": "selective"}),
    ("qwen3-30b-a3b", "64xh100-sxm", {"shard": "zero3", "ep": 8, "tp": 2, "offload": ["optimizer"]}),
    ("qwen3-8b", "64xb200-sxm", {"shard": "zero3", "offload": {"activations": 1.0}, "precision": "mxfp8"}),
    ("kimi-k2", "1024xh100-sxm", {"shard": "zero3", "ep": 16, "recompute": "full"}),
    ("gpt3-175b", "1024xh100-sxm", {"shard": "zero3", "tp": 8, "recompute": {"kind": "full", "layers": 3}}),
)


def folder() -> Path:
    """Where the package lies."""
    named = os.environ.get("RIDGELINE_MAXTEXT")
    found = importlib.util.find_spec("maxtext")
    if named and Path(named, "maxtext").is_dir():
        return Path(named)
    if found is None or not found.submodule_search_locations:
        pytest.skip("maxtext is not installed and RIDGELINE_MAXTEXT names no folder of it")
    return Path(found.submodule_search_locations[0]).parent


def configured(scenario: Scenario, tmp_path: Path) -> Any:
    """What MaxText makes of the export, with the chips and slices of the scenario in place of those of this machine."""
    sys.path.insert(0, str(folder()))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        from maxtext.configs import pyconfig
    except ImportError as problem:
        pytest.skip(f"MaxText's configuration does not import: {problem}")
    path = tmp_path / "maxtext.yml"
    path.write_text(TARGETS["maxtext"].write(scenario).files[path.name], encoding="utf-8")
    chips = scenario.system.chips
    devices, slices = chips * devices_of(scenario.system.chip.id), chips // inside(scenario.system)
    words = ["run_name=test", f"base_output_directory={tmp_path}", "internal_compile=true", "log_config=false"]
    words += [f"internal_compile_num_devices={devices}", f"num_slices={slices}"]
    read = pyconfig.initialize(["", str(path), *words])
    assert prod(read.ici_parallelism) == devices // slices
    assert prod(read.dcn_parallelism) == slices
    return read


@pytest.mark.parametrize(("model", "system", "plan"), PLANS)
def test_maxtext_accepts(model: str, system: str, plan: dict[str, Any], tmp_path: Path) -> None:
    chips = ridgeline.system(system).chips
    work = {"seq": 2048 if model == "gpt3-175b" else 8192, "global_batch": chips * 8}
    scenario = ridgeline.scenario({"model": model, "system": system, "workload": work, "plan": plan})
    read = configured(scenario, tmp_path)
    mesh = scenario.plan.mesh
    assert read.max_target_length == work["seq"]
    assert read.global_batch_size_to_train_on == work["global_batch"]
    assert read.using_pipeline_parallelism == (mesh.pp > 1)
    spec = scenario.model
    assert read.emb_dim == spec.hidden
    if mesh.pp > 1:
        assert read.num_pipeline_microbatches % mesh.pp == 0
        assert read.pipeline_parallel_layers == read.num_layers_per_pipeline_stage * mesh.pp * read.num_pipeline_repeats


def test_a_model_without_a_name_is_accepted(tmp_path: Path) -> None:
    dims = {"hidden": 2048, "layers": 24, "vocab": 32000, "attention": {"heads": 16, "kv_heads": 4}}
    for ffn in ({"mlp": {"hidden": 5504}}, {"moe": {"experts": 8, "topk": 2, "hidden": 5504}}):
        table = {"model": {**dims, **ffn}, "system": "16xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}}
        read = configured(ridgeline.scenario({**table, "plan": {"shard": "zero3"}}), tmp_path)
        assert (read.num_decoder_layers, read.num_kv_heads, read.mlp_dim) == (24, 4, 5504)


def test_what_it_refuses_is_refused(tmp_path: Path) -> None:
    """The oracle can say no: FP8 with delayed scaling and accumulated gradients."""
    work = {"seq": 8192, "global_batch": 256}
    scenario = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": {}})
    configured(scenario, tmp_path)
    from maxtext.configs import pyconfig

    words = ["quantization=fp8", f"base_output_directory={tmp_path}", "internal_compile=true"]
    with pytest.raises(Exception, match="gradient accumulation"):
        pyconfig.initialize(["", str(tmp_path / "maxtext.yml"), *words, "internal_compile_num_devices=8"])


@pytest.mark.parametrize("id", sorted(MODELS_NAMED))
def test_names_are_the_catalogs_models(id: str) -> None:
    configs = folder() / "maxtext" / "configs"
    base = yaml.safe_load((configs / "base.yml").read_text(encoding="utf-8"))
    own = yaml.safe_load((configs / "models" / f"{MODELS_NAMED[id]}.yml").read_text(encoding="utf-8"))
    read, spec = {**base, **own}, MODELS[id]
    last = spec.blocks[spec.order[-1]]
    pairs = 2 if read["decoder_block"] == "gemma2" else 1  # a block of Gemma 2 is a local and a global layer
    assert (read["base_emb_dim"], read["base_num_decoder_layers"] * pairs) == (spec.hidden, spec.layers)
    assert int(str(read["vocab_size"]).replace("_", "")) == VOCABULARIES.get(MODELS_NAMED[id], spec.vocab)
    assert read["logits_via_embedding"] == spec.embedding.tied
    if isinstance(last.mixer, Attention):
        heads = (read["base_num_query_heads"], read["base_num_kv_heads"], read["head_dim"])
        assert heads == (last.mixer.heads, last.mixer.kv_heads, last.mixer.head_dim)
    if isinstance(last.ffn, Moe):
        widths = (read["num_experts"], read["num_experts_per_tok"], read["base_moe_mlp_dim"])
        assert widths == (last.ffn.experts, last.ffn.topk, last.ffn.hidden)
    elif isinstance(last.ffn, Mlp):
        assert read["base_mlp_dim"] == last.ffn.hidden


def test_the_recorded_options_are_those_of_the_package() -> None:
    found, known = record(folder()), options("maxtext")
    if found["version"] != known.version:
        pytest.skip(f"the package is {found['version']}, recorded is {known.version}")
    assert set(found["values"]) == known.values
    assert {key: tuple(words) for key, words in found["choices"].items()} == known.choices
