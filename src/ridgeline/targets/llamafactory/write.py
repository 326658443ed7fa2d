"""Turn a Scenario into LLaMA-Factory's YAML, Accelerate's or DeepSpeed's file beside it, and launch scripts.

FSDP2 is started by `accelerate launch`, DeepSpeed and DDP by torchrun, each on LLaMA-Factory's own launcher module.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.hf_pieces import common, sees
from ridgeline.targets.hf_run import TrainerRun, run_of
from ridgeline.targets.hf_write import ZERO, by_accelerate, by_torchrun, launch_pieces, trainer_export
from ridgeline.targets.ledger import Lose, Piece, Say
from ridgeline.targets.llamafactory.names import ID, STAGES, WORDS
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on

CAN = frozenset({("deepspeed", "tp")})
NOTE = "# dataset, dataset_dir and template in train.yaml are yours to choose."
PROGRAM = ("llamafactory.launcher", "train.yaml")


def write(scenario: Scenario) -> Export:
    """train.yaml, accelerate.yaml or deepspeed.json where one of them shards, and the launch scripts."""
    run = run_of(scenario, CAN)
    if run.backend == "fsdp2":
        command = by_accelerate(scenario, " ".join(PROGRAM), NOTE)
    else:
        command = by_torchrun(scenario, PROGRAM, NOTE)
    return trainer_export(ID, scenario, _pieces(scenario, run), command)


def _pieces(scenario: Scenario, run: TrainerRun) -> Iterator[Piece]:
    work = scenario.workload
    assert isinstance(work, Train)
    yield from runs_on(scenario, ID)
    words = dict(WORDS)
    if run.backend != "fsdp2":
        del words["mixed"]
    yield from common(scenario, run, words)
    if run.backend == "fsdp2":
        yield from launch_pieces(scenario, run)
    if run.backend == "deepspeed":
        yield Say("train.deepspeed", ZERO, "plan.shard")
    seen = sees(scenario, words)
    yield Say("train.stage", "sft" if seen else STAGES[work.task], "workload.task")
    if seen:  # encoders are frozen unless told otherwise
        yield Say("train.freeze_vision_tower", work.towers == "frozen", "workload.towers")
        yield Say("train.freeze_multi_modal_projector", False)
        if work.task == "pretrain":
            yield Lose("workload.task", "its stage pt reads text alone: written as sft")
    yield Say("train.finetuning_type", "lora" if work.lora is not None else "full", "workload.task")
    for option, value in (
        ("do_train", True),
        ("dataset", "your_dataset"),
        ("template", "default"),
        ("output_dir", "output"),
        ("max_steps", 50),
    ):
        yield Say(f"train.{option}", value)
