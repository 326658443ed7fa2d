"""Exports against the targets' own parsers: DeepSpeed's configuration, torchtitan's job config, verl through Hydra.

None of the three is part of the test extra (each brings a training stack along): a test is skipped where its package is
absent. The recorded option lists cover the default run. To run them, install without dependencies what is needed:

    deepspeed==0.19.8 hjson py-cpuinfo einops msgpack; torchtitan==0.2.2 tyro tomli tokenizers einops; verl==0.9.1 ray
    hydra-core tensordict transformers codetiming; torch and triton for all
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import import_run
from ridgeline.targets.options import options
from ridgeline.targets.registry import TARGETS

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama3-8b", {"shard": "zero3"}),
    ("llama3-8b", {"shard": "none", "recompute": "full"}),
    ("llama3-8b", {"shard": "zero1", "tp": 2, "pp": 2, "microbatch": 2}),
    ("llama3-8b", {"shard": "zero2", "shard_degree": 4, "pp": 4, "schedule": "interleaved"}),
    ("llama3-70b", {"shard": "zero3", "cp": 2, "cp_kind": "all-to-all", "tp": 4, "precision": "fp8"}),
    ("qwen3-30b-a3b", {"shard": "zero3", "ep": 8, "tp": 2, "offload": ["optimizer"], "moe_dispatch": "deepep"}),
    ("qwen3-8b", {"shard": "zero3", "offload": {"optimizer": 0.5, "activations": 1.0}, "precision": "mxfp8"}),
    ("llama3-8b", {"shard": "zero3", "cp": 4, "cp_kind": "all-to-all"}),
    ("mixtral-8x7b", {"shard": "zero3", "ep": 8, "cp": 2, "cp_kind": "all-to-all", "shard_degree": 8}),
    ("mixtral-8x7b", {"shard": "zero1", "ep": 4, "tp": 2, "etp": 2, "recompute": {"kind": "full", "layers": 3}}),
    ("llama3-8b", {"shard": "zero1", "recompute": {"kind": "selective", "parts": ["alternate"]}, "precision": "fp16"}),
)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def made(model: str, plan: dict[str, Any]) -> Scenario:
    chip = "64xb200-sxm" if plan.get("precision") == "mxfp8" else "64xh100-sxm"
    table = {"model": model, "system": chip, "workload": {"seq": 8192, "global_batch": 512}, "plan": plan}
    return ridgeline.scenario(table)


@pytest.mark.skipif(not version("deepspeed"), reason="deepspeed is not installed")
@pytest.mark.parametrize(("model", "plan"), PLANS)
def test_deepspeed_accepts(model: str, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    scenario = made(model, plan)
    table = json.loads(TARGETS["deepspeed"].write(scenario).files["ds_config.json"])

    class Ranks:
        """What the engine asks a model-parallel unit for."""

        @staticmethod
        def get_data_parallel_world_size() -> int:
            mesh = scenario.plan.mesh
            return mesh.dp * mesh.cp // table.get("sequence_parallel_size", 1)

    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    read = config.DeepSpeedConfig(table, mpu=Ranks())  # raises on an unknown key or a batch that does not multiply out
    stage = ("none", "zero1", "zero2", "zero3").index(scenario.plan.sharding.shard)
    assert read.zero_optimization_stage == stage
    ranks = Ranks.get_data_parallel_world_size()
    assert read.train_micro_batch_size_per_gpu == scenario.plan.microbatch
    assert read.train_micro_batch_size_per_gpu * read.gradient_accumulation_steps * ranks == 512
    if scenario.plan.offload.optimizer and not (scenario.plan.mesh.tp > 1 and scenario.plan.mesh.ep > 1):
        assert read.zero_config.offload_optimizer.device == "cpu"
        assert read.zero_config.offload_optimizer.ratio == scenario.plan.offload.optimizer
    assert read.tensor_parallel_config.autotp_size == (scenario.plan.mesh.tp if scenario.plan.mesh.tp > 1 else 0)
    assert read.expert_parallel_config.autoep_size == scenario.plan.mesh.ep
    mesh, shared = scenario.plan.mesh, table.get("sequence_parallel_size", 1)
    assert table.get("data_parallel_size", mesh.dp) * shared * mesh.tp * mesh.pp == scenario.system.chips or shared == 1
    experts = pytest.importorskip("deepspeed.module_inject.auto_ep_config")
    offloaded = read.zero_config.offload_optimizer is not None
    experts.validate_autoep_config(
        read.expert_parallel_config, scenario.system.chips, 1, mesh.tp, shared,
        zero_stage=stage, zero_offload_optimizer=offloaded,
    )  # fmt: skip


def test_deepspeed_refuses_what_is_not_an_option() -> None:
    if not version("deepspeed"):
        pytest.skip("deepspeed is not installed")
    config = pytest.importorskip("deepspeed.runtime.config")
    with pytest.raises(Exception, match="stag"):
        config.DeepSpeedConfig({"train_batch_size": 1, "zero_optimization": {"stag": 3}})


def titan() -> str:
    found = version("torchtitan")
    if not found:
        return "torchtitan is not installed"
    return "" if found.startswith("0.2.") else f"torchtitan {found} is configured in Python; 0.2 reads job files"


@pytest.mark.skipif(bool(titan()), reason=titan())
@pytest.mark.parametrize(("model", "plan"), PLANS)
def test_torchtitan_accepts(model: str, plan: dict[str, Any], tmp_path: Path) -> None:
    from torchtitan.config import ConfigManager

    scenario = made(model, plan)
    path = tmp_path / "job.toml"
    path.write_text(TARGETS["torchtitan"].write(scenario).files["job.toml"], encoding="utf-8")
    read = ConfigManager().parse_args([f"--job.config_file={path}"])
    mesh = scenario.plan.mesh
    assert read.parallelism.tensor_parallel_degree == mesh.tp
    assert read.parallelism.data_parallel_shard_degree * read.parallelism.data_parallel_replicate_degree == mesh.dp
    assert (read.training.seq_len, read.training.global_batch_size) == (8192, 512)
    if mesh.pp > 1:
        parts = read.parallelism.module_fqns_per_model_part
        assert [sum(name.startswith("layers.") for name in part) for part in parts] == list(scenario.placement)


@pytest.mark.skipif(bool(titan()), reason=titan())
def test_torchtitan_flavors_are_the_catalogs_models() -> None:
    """Sizes of torchtitan's own flavors against the catalog entries they are read as."""
    from torchtitan.protocols.train_spec import get_train_spec

    from ridgeline.models.load import MODELS
    from ridgeline.targets.dialects.torchtitan.write import FLAVORS

    for (family, flavor), id in FLAVORS.items():
        args, entry = get_train_spec(family).model_args[flavor], MODELS[id]
        assert (args.dim, args.n_layers, args.vocab_size) == (entry.hidden, entry.layers, entry.vocab), (family, flavor)
        assert getattr(args, "n_heads", None) in (None, getattr(entry.layer(0).mixer, "heads", None)), (family, flavor)


@pytest.mark.parametrize("family", ["llama3", "qwen3", "deepseek_v3", "gpt_oss"])
def test_torchtitan_functions_are_read_as_they_run(family: str) -> None:
    """Versions from 0.3 on: what the syntax tree says of a function against what the function returns."""
    if not version("torchtitan") or not titan():
        pytest.skip("torchtitan 0.3 is not installed")
    registry = pytest.importorskip(f"torchtitan.models.{family}.config_registry")
    path = Path(registry.__file__)
    names = [name for name in dir(registry) if name.startswith(family) and "debug" not in name]
    read = 0
    for name in names:
        if not callable(getattr(registry, name)) or "moe" in name:
            continue
        try:
            real = getattr(registry, name)()
        except ImportError:
            continue  # narrow formats need torchao
        found = import_run(Path(f"{path}::{name}"), system="512xh100-sxm").settings
        assert found["workload"]["seq"] == real.training.seq_len, name
        assert found["plan"]["tp"] == real.parallelism.tensor_parallel_degree, name
        assert found["plan"]["ep"] == real.parallelism.expert_parallel_degree, name
        assert found["plan"]["microbatch"] == real.training.local_batch_size, name
        whole = type(real.activation_checkpoint).__qualname__.startswith("FullAC")
        assert (found["plan"]["recompute"] == "full") == whole, name
        read += 1
    assert read


@pytest.mark.skipif(not version("verl"), reason="verl is not installed")
@pytest.mark.parametrize(("model", "plan"), PLANS)
@pytest.mark.parametrize("engine", ["torch-eager", "megatron-core"])
def test_verl_accepts(model: str, plan: dict[str, Any], engine: str, tmp_path: Path) -> None:
    hydra = pytest.importorskip("hydra")
    from verl.utils.config import omega_conf_to_dataclass

    scenario = made(model, {**plan, "engine": engine})
    path = tmp_path / "verl.yaml"
    path.write_text(TARGETS["verl"].write(scenario).files["verl.yaml"], encoding="utf-8")
    with hydra.initialize_config_dir(config_dir=str(tmp_path), version_base=None):
        read = hydra.compose(config_name="verl")
    actor = omega_conf_to_dataclass(read.actor_rollout_ref.actor)
    mesh = scenario.plan.mesh
    assert actor.ppo_micro_batch_size_per_gpu == scenario.plan.microbatch
    assert read.trainer.nnodes * read.trainer.n_gpus_per_node == scenario.system.chips
    if type(actor).__name__ == "McoreActorConfig":
        assert actor.megatron.tensor_model_parallel_size == mesh.tp
        assert actor.megatron.pipeline_model_parallel_size == mesh.pp
        assert actor.megatron.expert_model_parallel_size == mesh.ep
    else:
        assert mesh.tp * mesh.pp * mesh.ep == 1
        assert engine == "torch-eager"
        assert actor.fsdp_config.fsdp_size == scenario.plan.shard_degree
        assert actor.ulysses_sequence_parallel_size == mesh.cp


@pytest.mark.parametrize("target", ["deepspeed", "verl"])
def test_the_recorded_list_is_of_the_version_that_is_installed(target: str) -> None:
    if not version(target):
        pytest.skip(f"{target} is not installed")
    assert options(target).version == TARGETS[target].version == version(target)
