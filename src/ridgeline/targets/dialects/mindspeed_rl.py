"""MindSpeed-RL: the YAML of a GRPO, PPO or DAPO run on Ascend chips, and such files read back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.imports.model_names import named_by
from ridgeline.targets.imports.option_reader import OptionReader, false_where_unreadable, nest_options, table_of
from ridgeline.targets.imports.run_files import SCRIPTS, checkout_of
from ridgeline.targets.ledger import Piece
from ridgeline.targets.options import options
from ridgeline.targets.post_training.gather import composed, merged, yaml_options
from ridgeline.targets.post_training.megatron_actor import actor_pieces, read_actor
from ridgeline.targets.post_training.read import imported_post_training, other_algorithm
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import FileForm, export_post_training, head, ray_script
from ridgeline.targets.target import Export, Files, Imported, refusal
from ridgeline.targets.yaml_text import yaml_text

ID, FILE = "mindspeed-rl", "run.yaml"
PLACES = ("actor_config", "megatron_training")
PROGRAM = re.compile(r"cli/train_(grpo|ppo|dapo)\.py")
NAMED = re.compile(r"--config-name[= ]+[\"']?\$?\{?(\w+)")
SIZES = re.compile(r"(qwen|llama)(\d)(\d)(?=_)")  # qwen25_32b is Qwen2.5-32B
BEFORE = """MINDSPEED_RL=${MINDSPEED_RL:-MindSpeed-RL}
DATASET=${DATASET:?a folder of prompts that MindSpeed-RL has prepared}
LOAD=${LOAD:?a folder with weights in Megatron's form}
"""


def write(scenario: Scenario) -> Export:
    """run.yaml and the launch scripts."""
    return export_post_training(ID, post_training(scenario), FileForm(files=_files, read=read, actor=_actor))


def option_name(option: str) -> str:
    """Where the YAML has one of Megatron's options: the actor's own table, or the one of all roles.

    >>> option_name("--tensor-model-parallel-size"), option_name("--bf16")
    ('actor_config.tensor_model_parallel_size', 'megatron_training.bf16')
    """
    name, known = option.removeprefix("--").replace("-", "_"), options(ID).values
    of_all = name in OF_ALL_ROLES
    places = PLACES[::-1] if of_all else PLACES
    return next((f"{place}.{name}" for place in places if f"{place}.{name}" in known), f"{places[0]}.{name}")


def written_name(option: str) -> str:
    """The same where the project documents it, empty elsewhere."""
    name = option_name(option)
    return name if name in options(ID).values else ""


OF_ALL_ROLES = ("bf16", "fp16", "sequence_parallel", "use_distributed_optimizer")


def _actor(scenario: Scenario[Rl]) -> Iterator[Piece]:
    return actor_pieces(actor_scenario(scenario), written_name, spells_model=True)


def _files(scenario: Scenario[Rl], stated: JsonMapping) -> Files:
    software = SOFTWARE[ID]
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in stated.items() if "." in name}
    kept |= {"generate_config.trust_remote_code": True, "rl_config.rule_reward": True}
    if scenario.workload.algorithm == "ppo":
        of_critic = {name.replace("actor_config.", "critic_config."): value for name, value in kept.items()}
        kept |= {name: value for name, value in of_critic.items() if name.startswith("critic_config.")}
    text = head(scenario, software) + yaml_text(nest_options(kept))
    program = {"ppo": "train_ppo", "dapo": "train_dapo"}.get(scenario.workload.algorithm, "train_grpo")
    command = (
        f'python3 "$MINDSPEED_RL/cli/{program}.py" --config-path "$PWD" --config-name {FILE.removesuffix(".yaml")} \\\n'
        '    megatron_training.tokenizer_name_or_path="$MODEL" megatron_training.data_path="$DATASET" \\\n'
        '    +actor_config.load="$LOAD"'
    )
    return {FILE: text, **ray_script(scenario, software, BEFORE, command)}


def read(files: Files) -> Imported:
    """What the YAML says, with the groups that it names."""
    software = SOFTWARE[ID]
    reader = _options(files)
    stage = str(reader.options.get("megatron_training.stage", "ray_grpo"))
    if stage not in ("ray_grpo", "ray_ppo", "ray_dapo"):
        raise other_algorithm(f"{stage[:40]} by MindSpeed-RL", reader.table.source)
    facts = software.read_facts(reader)
    _resolve(facts)
    model = _model(facts, reader)
    table = reader.options.get("actor_config.model") or reader.options.get("megatron_training.model") or "model"
    reader.taken |= {name for name in reader.options if name.startswith(("model.", f"{table}.", "actor_config.model"))}
    facts["model.path"] = model or str(facts.get("model.path") or "")
    actor = _read_megatron(reader, model)
    spelled = actor.pop("model", None)
    imported = imported_post_training(software, files, reader, facts, actor)
    return imported if spelled is None or "model" in imported.settings else _with_model(imported, spelled)


def _with_model(imported: Imported, model: object) -> Imported:
    from dataclasses import replace

    unread = tuple(part for part in imported.unread if part.option != "model")
    return replace(imported, settings={"model": model, **imported.settings}, unread=unread)


def _options(files: Files) -> OptionReader:
    """The YAML of the run, or the one that its script names by `--config-name`."""
    signs = ("rl_config", "actor_config")
    for name, text in files.items():
        named = NAMED.search(text) if name.endswith(SCRIPTS) else None
        if named is None or any(file.endswith((".yaml", ".yml")) for file in files):
            continue
        default = re.search(rf"^\s*DEFAULT_{named.group(1)}=[\"']?(\w+)", text, re.M)
        config = (default.group(1) if default else named.group(1)) + ".yaml"
        data = table_of(config, checkout_of(files).named(f"configs/{config}"))
        if data is None:
            raise refusal(f"{config}, which is not here", "the YAML file that the script names", where=name)
        return merged(composed(dict(data), files), files, config)
    return yaml_options(files, signs)


def _model(facts: JsonObject, reader: OptionReader) -> str | None:
    """The model by the name of its table or of its tokenizer."""
    table = str(reader.options.get("actor_config.model") or reader.options.get("megatron_training.model") or "")
    for text in (str(facts.get("model.path") or ""), SIZES.sub(r"\1\2.\3", table).replace("_", "-")):
        entry = named_by(text) if text and "$" not in text else None
        if entry is not None:
            return entry[0]
    return None


def _read_megatron(reader: OptionReader, model: str | None) -> JsonObject:
    """The plan of the actor's table over the one of all roles."""
    reader.options = {**reader.options}
    for name, value in list(reader.options.items()):
        section, _, key = name.partition(".")
        own = option_name(f"--{key.replace('_', '-')}") if section in PLACES else ""
        if own and own != name and (own not in reader.options or section == "actor_config"):
            reader.options[own] = value
            reader.taken.add(name)
    layers = reader.options.get("actor_config.num_layer_list")
    if isinstance(layers, str) and re.fullmatch(r"\d+(,\d+)*", layers):
        reader.taken.add("actor_config.num_layer_list")
    plan = read_actor(reader, option_name, model)
    if isinstance(layers, str) and re.fullmatch(r"\d+(,\d+)*", layers):
        plan["placement"] = [int(part) for part in layers.split(",")]
    return plan | {"engine": "mindspeed"}


def _resolve(facts: JsonObject) -> None:
    """Facts that several options hold together, and what the software does by itself."""
    facts["reference"] = True
    facts["workload.learning.kl"] = facts["kl.coefficient"]
    if not facts.get("clips.apart"):
        facts |= {"workload.learning.clip_low": facts["clip"], "workload.learning.clip_high": facts["clip"]}
    facts["workload.learning.average"] = "token-mean" if facts["token_loss"] else "seq-mean-token-mean"
    facts["plan.rl.weight_sync.method"] = "direct"
    facts["plan.rl.free_engine"] = True
    if facts.get("pack.dynamic") and facts.get("pack.update"):
        facts["plan.rl.pack"] = facts["pack.update"]
    ep, tp = facts.get("plan.rl.rollout.ep", 1), facts.get("plan.rl.rollout.tp", 1)
    if "plan.rl.rollout.dp" not in facts and ep > tp:
        facts["plan.rl.rollout.dp"] = ep // tp


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A YAML file of the sections, or a script that starts one of the programs."""
    if any(name.endswith(SCRIPTS) and PROGRAM.search(text) for name, text in files.items()):
        return True
    reader = yaml_options(files, ("rl_config",))
    return any(name.startswith(("actor_config.", "megatron_training.")) for name in reader.options)
