"""verl's step of post-training: the Hydra file of a GRPO run and its launch script, and such files read back.

The actor's update is written and read as that of every run of verl; what is around it is a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.models.load import MODELS
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.dialects.verl import names as verl
from ridgeline.targets.dialects.verl.read import (
    actor_plan,
    actor_strategy,
    megatron_placement,
    merge_overrides,
    read_lora,
)
from ridgeline.targets.dialects.verl.read_base import base_of
from ridgeline.targets.dialects.verl.write import fsdp_pieces, lora_pieces, megatron_pieces
from ridgeline.targets.imports.model_names import named_by
from ridgeline.targets.imports.option_reader import OptionReader, assignments, nest_options
from ridgeline.targets.ledger import Piece, Say
from ridgeline.targets.post_training.read import imported_post_training
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import MARK, FileForm, export_post_training, head, ray_script, trainer_of
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.vendors import vendor_of
from ridgeline.targets.yaml_text import yaml_text

ID = verl.ID
FILE = "verl.yaml"
PROGRAMS = {
    "colocated": "verl.trainer.main_ppo",
    "one-step-off": "verl.experimental.one_step_off_policy.main_ppo",
    "async": "verl.experimental.fully_async_policy.fully_async_main",
}
UPDATE = re.compile(r"verl[./](trainer|experimental|recipe|workers)|recipe[./]\w+|main_ppo|main_dapo|actor_rollout_ref")
OTHER_TRAINERS = ("veomni", "torchtitan", "automodel", "mindspeed")
BEFORE = """TRAIN_FILES=${TRAIN_FILES:-$HOME/data/gsm8k/train.parquet}
VAL_FILES=${VAL_FILES:-$HOME/data/gsm8k/test.parquet}
"""


def write_post_training(scenario: Scenario) -> Export:
    """verl.yaml and the launch scripts."""
    return export_post_training(ID, scenario, FileForm(files=_files, read=read_post_training, actor=_actor))


def _actor(scenario: Scenario[Rl]) -> Iterator[Piece]:
    """The actor's update, by FSDP2 or by Megatron; a reference and a critic are split as it is."""
    megatron, update = trainer_of(scenario, SOFTWARE[ID]) == "megatron", actor_scenario(scenario)
    yield from megatron_pieces(update) if megatron else fsdp_pieces(update)
    yield from lora_pieces(update.workload, megatron)
    device = vendor_of(scenario.system).device
    if device != "cuda":
        yield Say("trainer.device", device)


def _files(scenario: Scenario[Rl], options: JsonMapping) -> Files:
    software = SOFTWARE[ID]
    placement = scenario.plan.rl.placement
    trainer = trainer_of(scenario, software)
    base = "ppo_megatron_trainer" if trainer == "megatron" else "ppo_trainer"
    hydra = {"defaults": [base, "_self_"], "hydra": {"searchpath": ["pkg://verl.trainer.config"]}}
    written = {name: value for name, value in options.items() if not name.startswith("program")}
    text = head(scenario, software) + yaml_text(hydra | nest_options(written))
    command = (
        f'python3 -m {PROGRAMS[placement]} --config-path="$PWD" --config-name={FILE.removesuffix(".yaml")} \\\n'
        f'    {verl.MODEL}.path="$MODEL" data.train_files="$TRAIN_FILES" data.val_files="$VAL_FILES"'
    )
    return {FILE: text, **ray_script(scenario, software, BEFORE, command)}


def read_post_training(files: Files) -> Imported:
    """What files say of a step of post-training."""
    software, base = SOFTWARE[ID], base_of(files)
    reader = OptionReader(merge_overrides(files))
    reader.taken |= base.quiet - set(assignments(files))
    strategy = actor_strategy(reader, f"{verl.ACTOR}.strategy", base.engine)
    megatron = strategy == "megatron" or (
        not strategy and any(name.startswith(f"{verl.MEGATRON}.") for name in reader.options)
    )
    placement = _placement(files, reader)
    own = {"program": placement, "program.trainer": "megatron" if megatron else "fsdp"}
    reader.options |= {**own, "program.colocated": placement == "main_ppo"}
    facts = software.read_facts(reader)
    _resolve(facts, reader, megatron)
    actor = actor_plan(reader, megatron, strategy)
    facts |= _adapters(reader, megatron)
    entry = named_by(str(facts.get("model.path") or ""))
    actor |= megatron_placement(reader, actor, MODELS[entry[0]].layers if entry else 0) if megatron else {}
    if isinstance(facts.get("model.path"), str) and "MODEL" in str(facts["model.path"]):
        facts["model.path"] = ""
    return imported_post_training(software, files, reader, facts, actor)


def _adapters(reader: OptionReader, megatron: bool) -> JsonObject:
    lora = read_lora(reader, megatron).get("lora")
    return {"workload.lora.rank": lora["rank"], "workload.lora.targets": lora["targets"]} if lora else {}


def _placement(files: Files, reader: OptionReader) -> str:
    """Which program runs, by its name, its own options or the mode of its trainer."""
    texts = " ".join(text for name, text in files.items() if not name.endswith((".yaml", ".yml")))
    texts += " ".join(text[:4000] for name, text in files.items() if name.endswith((".yaml", ".yml")))
    mode = reader.take("trainer.v1.trainer_mode")
    separate = any(name.startswith("async_training.") for name in reader.options)
    if "fully_async" in texts or separate or mode == "separate_async":
        return "fully_async_policy"
    if "one_step_off" in texts:
        return "one_step_off_policy"
    if mode == "colocate_async":
        reader.note("trainer.v1.trainer_mode", str(mode), "asynchronous training on shared chips: read as synchronous")
    return "main_ppo"


def _resolve(facts: JsonObject, reader: OptionReader, megatron: bool) -> None:
    """Facts that two options hold together."""
    facts["reference"] = bool(facts.get("reference")) or bool(facts.get("reference.in_reward"))
    if not facts["reference"]:
        facts.pop("workload.learning.kl", None)
    if not megatron and "plan.rl.offload.weights" in facts:
        facts["plan.rl.offload.gradients"] = facts["plan.rl.offload.weights"]
    if facts.get("filter") is True and facts["workload.algorithm"] != "grpo":
        facts["filter"] = False
    over_all = reader.count(f"{verl.ACTOR}.ppo_micro_batch_size")
    if over_all is not None and "pack.sequences" not in facts:
        chips = facts.get("all.nodes", facts.get("train.nodes", 1)) * facts.get("all.chips_per_node", 8)
        facts["pack.sequences"] = max(1, over_all // chips)
    if not facts.get("pack.dynamic") and "pack.sequences" not in facts:
        facts["pack.sequences"] = 1
        reader.assumptions.append("microbatch = 1: the files do not say it")
    if facts["plan.rl.placement"] == "async":
        _resolve_asynchronous(facts, reader)


def _resolve_asynchronous(facts: JsonObject, reader: OptionReader) -> None:
    """A step is what is trained on between two syncs: so the project's own tables count."""
    steps = facts.pop("async.sync_step", None)
    versions = facts.pop("async.versions", None)
    if any(name.startswith("async_training.") for name in reader.options) or steps is None:
        batches = facts["batch.mini_batches"] * facts["plan.rl.sync_every"]
        facts["workload.prompts"] = facts["workload.mini_batch"] * batches
    else:
        facts["workload.prompts"] *= steps
        facts["staleness.share"] = float(versions if versions is not None else 1)
        facts["plan.rl.partial_rollouts"] = True
    facts["plan.rl.sync_every"] = 1
    facts.pop("batch.mini_batches", None)


def is_post_training(files: Files) -> bool:
    """Whether files run a step of post-training, and not the actor's update that Ridgeline wrote alone."""
    texts = [text for text in files.values() if "Written by Ridgeline" in text]
    return any(MARK in text for text in texts) if texts else any(UPDATE.search(text) for text in files.values())
