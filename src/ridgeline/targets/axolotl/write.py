"""Turn a Scenario into Axolotl's YAML, DeepSpeed's file where DeepSpeed shards, and launch scripts."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.axolotl.names import ID, WORDS
from ridgeline.targets.hf_pieces import common
from ridgeline.targets.hf_run import TrainerRun, run_of
from ridgeline.targets.hf_write import ZERO, by_torchrun, trainer_export
from ridgeline.targets.ledger import Piece, Say
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on

CAN = frozenset({("fsdp2", "cp"), ("fsdp2", "tp")})
NOTE = "# datasets in train.yaml are yours to choose."


def write(scenario: Scenario) -> Export:
    """train.yaml, deepspeed.json where DeepSpeed shards, and the launch scripts."""
    pieces = _pieces(scenario, run_of(scenario, CAN))
    return trainer_export(ID, scenario, pieces, by_torchrun(scenario, ("axolotl.cli.train", "train.yaml"), NOTE))


def _pieces(scenario: Scenario, run: TrainerRun) -> Iterator[Piece]:
    work = scenario.workload
    assert isinstance(work, Train)
    yield from runs_on(scenario, ID)
    yield from common(scenario, run, WORDS)
    if run.backend == "fsdp2":
        yield Say("train.fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        yield Say("train.fsdp_config.cpu_ram_efficient_loading", True)
        yield Say("train.fsdp_config.state_dict_type", "SHARDED_STATE_DICT")
    if run.backend == "deepspeed":
        yield Say("train.deepspeed", ZERO, "plan.shard")
    if work.lora is not None:
        yield Say("train.adapter", "lora", "workload.task")
        yield Say("train.lora_alpha", 2 * work.lora.rank)
    else:
        yield Say("train.train_on_inputs", work.task == "pretrain", "workload.task")
    for option, value in (
        ("datasets", [{"path": "your/dataset", "type": "completion"}]),
        ("learning_rate", 2e-05),
        ("output_dir", "output"),
        ("max_steps", 50),
    ):
        yield Say(f"train.{option}", value)
