"""Turn pieces of a run of transformers' Trainer into an Export: YAML, Accelerate's and DeepSpeed's files, scripts.

FSDP2 is started by `accelerate launch`; what else `accelerate launch` is told stands here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.hf_run import FSDP, TYPES, TrainerRun
from ridgeline.targets.launch import Command, comment, header, nodes_of, scripts
from ridgeline.targets.ledger import Piece, Say, exported, gather
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import growing_segments
from ridgeline.targets.yaml_text import yaml_text

ZERO = "deepspeed.json"
STARTED = (
    '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" '
    '--num_machines "$NNODES" -m '
)


def trainer_export(id: str, scenario: Scenario, pieces: Iterable[Piece], command: Command) -> Export:
    """The tables of options as files, and the launch scripts."""
    ledger, title = gather(decisions_of(scenario), pieces), options(id).title
    files = trainer_files(scenario, nested(ledger.options), title)
    return exported(id, {**files, **scripts(scenario, command, title)}, ledger)


def by_accelerate(scenario: Scenario, program: str, note: str) -> Command:
    """`accelerate launch` of a Python module and its arguments, a process for each chip of the node."""
    words = ("accelerate", "launch", "--config_file", "accelerate.yaml")
    allocator = growing_segments(scenario.system)
    return Command(words=words, per_chip=False, tail=f"{STARTED}{program}", before=note, environment=allocator)


def by_torchrun(scenario: Scenario, program: tuple[str, ...], note: str) -> Command:
    """torchrun of a Python module and its arguments."""
    return Command(words=("-m", *program), before=note, environment=growing_segments(scenario.system))


def trainer_files(scenario: Scenario, tables: Mapping[str, Any], title: str) -> dict[str, str]:
    """The tables of options as the files they are named after."""
    head = comment(header(scenario, title))
    files = {f"{name}.yaml": head + yaml_text(tables[name]) for name in ("accelerate", "train") if name in tables}
    if "deepspeed" in tables:
        files[ZERO] = json.dumps(tables["deepspeed"], indent=2) + "\n"
    return files


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
