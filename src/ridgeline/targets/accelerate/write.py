"""Turn a Scenario into a configuration of `accelerate launch`, arguments of TRL's trainer and launch scripts.

Sharding is FSDP2's where the plan runs on PyTorch, and DeepSpeed's where the plan says so or only DeepSpeed can do it.
The trainer is `trl.scripts.sft`; its arguments are those of transformers' Trainer and hold for a script of your own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.accelerate.names import ID, WORDS
from ridgeline.targets.hf_pieces import common
from ridgeline.targets.hf_run import TrainerRun, run_of
from ridgeline.targets.hf_write import by_accelerate, launch_pieces, trainer_export
from ridgeline.targets.ledger import Piece, Say
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on

CAN = frozenset({("fsdp2", "cp"), ("deepspeed", "cp"), ("deepspeed", "tp")})
NOTE = "# dataset_name in train.yaml is yours to choose. Words after the script's name are passed on to the trainer."


def write(scenario: Scenario) -> Export:
    """accelerate.yaml, train.yaml, deepspeed.json where DeepSpeed shards, and the launch scripts."""
    pieces = _pieces(scenario, run_of(scenario, CAN))
    return trainer_export(ID, scenario, pieces, by_accelerate(scenario, "trl.scripts.sft --config train.yaml", NOTE))


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
