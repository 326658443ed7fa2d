"""Plans of post-training against the parsers of verl (Hydra), OpenRLHF (argparse) and TRL (dataclasses).

Tests are skipped where a package is absent; OpenRLHF and the other projects are checkouts, named by the environment:

    pip install --no-deps verl==0.9.1 trl==1.16.0; pip install hydra-core omegaconf transformers accelerate datasets
    OPENRLHF=~/OpenRLHF python -m pytest tests/real/test_target_post_training.py
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.registry import TARGETS

FSDP = {"shard": "zero3", "recompute": "full", "engine": "torch-eager", "cp": 2, "cp_kind": "all-to-all"}
MEGATRON = {"tp": 2, "pp": 2, "shard": "zero1", "recompute": "full", "engine": "megatron-core"}
APART: dict[str, Any] = {"train_chips": 8}
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "colocated"},
    {"placement": "one-step-off", **APART},
    {"placement": "async", "staleness": 0.5, "partial_rollouts": True, **APART},
)


def made(plan: dict[str, Any], rl: dict[str, Any], engine: str = "vllm", algorithm: str = "grpo") -> Scenario[Rl]:
    workload = {
        "kind": "rl", "algorithm": algorithm, "prompts": 64, "samples": 8, "prompt_tokens": 512, "mini_batch": 32,
        "response_tokens": 3584, "roles": {"reference": True} | ({"critic": True} if algorithm == "ppo" else {}),
    }  # fmt: skip
    shape = {"pack": 16384, "rollout": {"tp": 2, "engine": engine}, **rl}
    table = {"model": "qwen2.5-7b", "system": "16xh100-sxm", "workload": workload, "plan": {**plan, "rl": shape}}
    return post_training(ridgeline.scenario(table))


def verl_folder() -> Path | None:
    """Where verl lies, which is not imported: it asks for an accelerator's software."""
    spec = importlib.util.find_spec("verl")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@pytest.mark.skipif(verl_folder() is None, reason="verl is not installed")
@pytest.mark.parametrize("rl", PLACEMENTS)
@pytest.mark.parametrize("plan", [FSDP, MEGATRON])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_verl_composes(plan: dict[str, Any], rl: dict[str, Any], engine: str, tmp_path: Path) -> None:
    hydra = pytest.importorskip("hydra")
    scenario = made(plan, rl, engine)
    files = TARGETS["verl"].write(scenario).files
    folder = verl_folder()
    assert folder is not None
    text = files["verl.yaml"]
    for place in re.findall(r"pkg://verl\.([\w.]+)", text):  # as files, so that no package is imported
        text = text.replace(f"pkg://verl.{place}\n", f"file://{folder / place.replace('.', '/')}\n")
    (tmp_path / "verl.yaml").write_text(text, encoding="utf-8")
    with hydra.initialize_config_dir(config_dir=str(tmp_path), version_base=None):
        read = hydra.compose(config_name="verl")
    actor, rollout = read.actor_rollout_ref.actor, read.actor_rollout_ref.rollout
    chips = read.trainer.nnodes * read.trainer.n_gpus_per_node
    assert chips == (16 if rl["placement"] == "colocated" else 8)
    assert (actor.ppo_mini_batch_size, rollout.n, rollout.name) == (32, 8, engine)
    assert actor.ppo_max_token_len_per_gpu == 16384 // scenario.plan.mesh.cp
    assert rollout.tensor_model_parallel_size == 2
    assert read.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == actor.ppo_max_token_len_per_gpu
    if plan is MEGATRON:
        assert actor.megatron.pipeline_model_parallel_size == 2
        assert read.actor_rollout_ref.ref.megatron.pipeline_model_parallel_size == 2
    else:
        assert actor.ulysses_sequence_parallel_size == 2
    if rl["placement"] == "async":
        assert read.async_training.staleness_threshold == 0.5
        assert read.async_training.require_batches == 2


def openrlhf_parser() -> str:
    """The part of OpenRLHF's program that makes its parser and judges what it read, without what it imports."""
    folder = os.environ.get("OPENRLHF", "")
    path = Path(folder) / "openrlhf" / "cli" / "train_ppo_ray.py"
    if not folder or not path.is_file():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [main] = [node for node in tree.body if isinstance(node, ast.If)]
    lines = ast.unparse(ast.Module(body=main.body, type_ignores=[]))
    return f"import argparse\nfrom datetime import datetime\n{lines}\n".replace("train(args)", "print('accepted')")


@pytest.mark.skipif(not openrlhf_parser(), reason="OPENRLHF names no checkout of OpenRLHF")
@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "ppo", "rloo", "reinforce++"])
@pytest.mark.parametrize("rl", [*PLACEMENTS, {"placement": "split", **APART}])
def test_openrlhf_accepts(algorithm: str, rl: dict[str, Any]) -> None:
    if algorithm == "ppo" and rl["placement"] == "split":
        pytest.skip("a critic with chips of its own")
    plan = {"shard": "zero3", "recompute": "full", "engine": "deepspeed"}
    script = TARGETS["openrlhf"].write(made(plan, rl, algorithm=algorithm)).files["launch.sh"]
    array = script.partition("RUN_ARGS=(")[2].partition("\n)")[0]
    words = [word.replace("$MODEL", "m") for word in shlex.split(array)]
    words += ["--data.prompt_dataset", "d", "--reward.remote_url", "r.py"]
    place = {**os.environ, "PYTHONPATH": os.environ["OPENRLHF"]}
    program = openrlhf_parser().replace("from openrlhf.utils.config import hierarchize", HIERARCHIZE)
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, env=place, check=False
    )
    assert "accepted" in done.stdout, done.stderr[-1500:]


# of openrlhf.utils.config, whose package imports torch: dotted names as attributes of attributes
HIERARCHIZE = """
def hierarchize(flat):
    whole = argparse.Namespace()
    for name, value in vars(flat).items():
        at, *rest = whole, *name.split(".")
        for part in rest[:-1]:
            if not hasattr(at, part):
                setattr(at, part, argparse.Namespace())
            at = getattr(at, part)
        setattr(at, rest[-1], value)
    return whole
"""


@pytest.mark.parametrize("rl", [{"placement": "colocated"}, {"placement": "split", **APART}])
def test_trl_accepts(rl: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("trl")
    config = pytest.importorskip("trl.trainer.grpo_config")
    plan = {"shard": "zero3", "recompute": "full", "engine": "torch-eager"}
    train = yaml.safe_load(TARGETS["trl"].write(made(plan, rl)).files["train.yaml"])
    names = set(config.GRPOConfig.__dataclass_fields__)
    own = {name: value for name, value in train.items() if name in names} | {"output_dir": str(tmp_path)}
    read = config.GRPOConfig(**{**own, "bf16": False, "use_cpu": True})
    chips = 8 if rl["placement"] == "split" else 16
    assert read.per_device_train_batch_size * read.gradient_accumulation_steps * chips == 32 * 8
    assert read.per_device_train_batch_size * read.steps_per_generation * chips == 64 * 8
    assert (read.num_generations, read.max_completion_length) == (8, 3584)
    assert read.vllm_mode == ("server" if rl["placement"] == "split" else "colocate")
