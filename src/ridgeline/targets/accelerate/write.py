"""Turn a Scenario into a configuration of `accelerate launch`, arguments of TRL's trainer and launch scripts.

Sharding is FSDP2's where the plan runs on PyTorch, and DeepSpeed's where the plan says so or only DeepSpeed can do it.
The trainer is `trl.scripts.sft`; its arguments are those of transformers' Trainer and hold for a script of your own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.accelerate.names import FSDP, ID, TYPES, WORDS
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.hf_pieces import common
from ridgeline.targets.hf_run import TrainerRun, run_of
from ridgeline.targets.launch import Command, comment, header, nodes_of, scripts
from ridgeline.targets.ledger import Piece, Say, exported, gather
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on
from ridgeline.targets.yaml_text import yaml_text

CAN = frozenset({("fsdp2", "cp"), ("deepspeed", "cp"), ("deepspeed", "tp")})
ZERO = "deepspeed.json"
NOTE = "# dataset_name in train.yaml is yours to choose. Words after the script's name are passed on to the trainer."
START = (
    '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" '
    '--num_machines "$NNODES" -m trl.scripts.sft --config train.yaml'
)


def write(scenario: Scenario) -> Export:
    """accelerate.yaml, train.yaml, deepspeed.json where DeepSpeed shards, and the launch scripts."""
    run = run_of(scenario, CAN)
    ledger = gather(decisions_of(scenario), _pieces(scenario, run))
    title = options(ID).title
    words = ("accelerate", "launch", "--config_file", "accelerate.yaml")
    command = Command(words=words, per_chip=False, tail=START, before=NOTE, environment=ALLOCATOR)
    files = trainer_files(scenario, nested(ledger.options), title)
    return exported(ID, {**files, **scripts(scenario, command, title)}, ledger)


ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def trainer_files(scenario: Scenario, tables: Mapping[str, Any], title: str) -> dict[str, str]:
    """The tables of options as the files they are named after."""
    head = comment(header(scenario, title))
    files = {f"{name}.yaml": head + yaml_text(tables[name]) for name in ("accelerate", "train") if name in tables}
    if "deepspeed" in tables:
        files[ZERO] = json.dumps(tables["deepspeed"], indent=2) + "\n"
    return files


def _pieces(scenario: Scenario, run: TrainerRun) -> Iterator[Piece]:
    work = scenario.workload
    assert isinstance(work, Train)
    yield from runs_on(scenario, ID)
    words = dict(WORDS, flash="sdpa") if run.cp > 1 else dict(WORDS)
    if run.backend == "deepspeed":
        del words["mixed"]  # DeepSpeed's own file says it, and Accelerate refuses it twice
    yield from common(scenario, run, words)
    yield from launch_pieces(scenario, run)
    yield Say("train.completion_only_loss", work.task == "finetune", "workload.task")
    yield Say("train.use_peft", work.lora is not None, "workload.task")
    for option, value in (("dataset_name", "your/dataset"), ("output_dir", "output"), ("max_steps", 50)):
        yield Say(f"train.{option}", value)


def launch_pieces(scenario: Scenario, run: TrainerRun) -> Iterator[Piece]:
    """What `accelerate launch` is told beside the mesh."""
    nodes, _ = nodes_of(scenario.system)
    kind = "NO" if scenario.system.chips == 1 and run.backend == "ddp" else TYPES[run.backend]
    for option, value in (
        ("compute_environment", "LOCAL_MACHINE"),
        ("distributed_type", kind),
        ("num_machines", nodes),
        ("num_processes", scenario.system.chips),
        ("machine_rank", 0),
        ("main_training_function", "main"),
        ("rdzv_backend", "static"),
        ("same_network", True),
    ):
        yield Say(f"accelerate.{option}", value)
    if kind != "NO":
        yield Say("accelerate.distributed_type", kind, "plan.shard")
    if run.backend == "fsdp2":
        yield Say(f"{FSDP}_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        yield Say(f"{FSDP}_cpu_ram_efficient_loading", True)
        yield Say(f"{FSDP}_state_dict_type", "SHARDED_STATE_DICT")
    if run.backend == "deepspeed":
        yield Say("accelerate.deepspeed_config.deepspeed_config_file", ZERO)
        yield Say("accelerate.deepspeed_config.zero3_init_flag", run.stage == 3)
        yield Say("accelerate.deepspeed_config.deepspeed_multinode_launcher", "standard")
