"""Turn a Scenario into LLaMA-Factory's YAML, Accelerate's or DeepSpeed's file beside it, and launch scripts.

FSDP2 is started by `accelerate launch`, DeepSpeed and DDP by torchrun, each on LLaMA-Factory's own launcher module.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.accelerate.write import ALLOCATOR, ZERO, launch_pieces, trainer_files
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.hf_pieces import common
from ridgeline.targets.hf_run import TrainerRun, run_of
from ridgeline.targets.launch import Command, scripts
from ridgeline.targets.ledger import Piece, Say, exported, gather
from ridgeline.targets.llamafactory.names import ID, STAGES, WORDS
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on

CAN = frozenset({("deepspeed", "tp")})
NOTE = "# dataset, dataset_dir and template in train.yaml are yours to choose."
START = (
    '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" '
    '--num_machines "$NNODES" -m llamafactory.launcher train.yaml'
)


def write(scenario: Scenario) -> Export:
    """train.yaml, accelerate.yaml or deepspeed.json where one of them shards, and the launch scripts."""
    run = run_of(scenario, CAN)
    ledger = gather(decisions_of(scenario), _pieces(scenario, run))
    title = options(ID).title
    files = trainer_files(scenario, nested(ledger.options), title)
    if run.backend == "fsdp2":
        started = ("accelerate", "launch", "--config_file", "accelerate.yaml")
        command = Command(words=started, per_chip=False, tail=START, before=NOTE, environment=ALLOCATOR)
    else:
        command = Command(words=("-m", "llamafactory.launcher", "train.yaml"), before=NOTE, environment=ALLOCATOR)
    return exported(ID, {**files, **scripts(scenario, command, title)}, ledger)


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
    yield Say("train.stage", STAGES[work.task], "workload.task")
    yield Say("train.finetuning_type", "lora" if work.lora is not None else "full", "workload.task")
    for option, value in (
        ("do_train", True),
        ("dataset", "your_dataset"),
        ("template", "default"),
        ("output_dir", "output"),
        ("max_steps", 50),
    ):
        yield Say(f"train.{option}", value)
