"""Primus, AMD's launcher: an experiment (YAML) of its Megatron backend, and such files read back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.core.catalog import overlay as laid_over
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table, parse_table
from ridgeline.hardware.load import system as load_system
from ridgeline.models.load import MODELS, find_name
from ridgeline.models.load import model as load_model
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.dialects.maxtext.read import read_table
from ridgeline.targets.dialects.maxtext.read_model import filled_axes
from ridgeline.targets.dialects.megatron.collect import OTHER_WORK, Given
from ridgeline.targets.dialects.megatron.read import settings_of
from ridgeline.targets.dialects.megatron.write import pieces
from ridgeline.targets.dialects.megatron.write_model import OPTION as PATTERN
from ridgeline.targets.dialects.megatron.write_model import is_hybrid, needs_segments, pattern
from ridgeline.targets.dialects.megatron_bridge.write import FIELDS, LORA, RECIPES
from ridgeline.targets.dialects.torchtitan.read import read_job
from ridgeline.targets.imports.option_reader import false_where_unreadable, split_options, table_of, tables
from ridgeline.targets.imports.run_files import SCRIPTS, Checkout, checkout_of
from ridgeline.targets.imports.shell_eval import read_script
from ridgeline.targets.launchers.launch import NodeCommand, account_run, export_run, nodes_of, system_in
from ridgeline.targets.ledger import Fixed, Like, Lose, Piece, Say, admit_options, lose
from ridgeline.targets.options import options
from ridgeline.targets.tables import names, values, words
from ridgeline.targets.target import Export, Files, Imported, other_work, refusal
from ridgeline.targets.yaml_text import yaml_text

ID = "primus"

# names of Megatron's configuration -> options of its command line; `no-` where false is the option
NAMES = words(ID, "names")
OPPOSITE = words(ID, "opposite")
# what Megatron does without the option, where Primus's own files (pre_trainer, language_model) would say otherwise
PLAIN = values(ID, "plain")
FILE = "primus.yaml"
OVERRIDES = "overrides."
NOTE = "# PRIMUS is a checkout of AMD-AGI/Primus; words after the script's name override keys (--train_iters 100)."
# what a first run needs beside the decisions: made-up data, few steps
RUN = {name: None if value == "null" else value for name, value in values(ID, "run").items()}
RANK = 32  # of Primus's own adapters
OPTIONS = {field.rpartition(".")[2]: option for option, field in FIELDS.items() if not field.startswith("comm_overlap")}
STATED = names(ID, "stated")
COMMON = values(ID, "common")
ATTENTION = ("linear_qkv", "linear_proj")  # what adapters of its recipes for models with experts stand beside
BRIDGE_RANK = 8  # of the adapters of its recipes
RECOMPUTED = ("qwen3-32b",)  # models whose recipes recompute all layers unless they are told otherwise
YAML = (".yaml", ".yml")
DEFAULTS = "pre_trainer.yaml"
WORDS: JsonMapping = {"true": True, "false": False, "none": None, "null": None}
DEEPEST = 12  # files that extend files
FRAMEWORKS = ("megatron", "torchtitan", "maxtext", "megatron_bridge")
IMAGES = ("diffusion", "hummingbird", "automodel")  # frameworks of Primus that train models of images and video
KINDS = ("gpt", "mamba")  # of Megatron's own models


def write(scenario: Scenario) -> Export:
    """primus.yaml and the launch scripts."""
    decisions = account_run(ID, scenario, _pieces(scenario))
    said = decisions.options.items()
    stated_options = {key.removeprefix(OVERRIDES): value for key, value in said if key.startswith(OVERRIDES)}
    plain = {key: value for key, value in PLAIN.items() if key not in stated_options}
    turbo = {"enable_primus_turbo": True} if "use_turbo_deepep" in stated_options else {}
    overrides = {**RUN, **plain, **turbo, **stated_options}
    kind = "mamba_base.yaml" if is_hybrid(scenario.model) else "language_model.yaml"
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": kind}
    table = {
        "work_group": "ridgeline",
        "user_name": "ridgeline",
        "exp_name": scenario.model.id,
        "workspace": "./output",
        "modules": {"pre_trainer": {**module, "overrides": overrides}},
    }
    _, chips_per_node = nodes_of(scenario.system)
    command = NodeCommand(
        words=(),
        per_chip=False,
        environment={"GPUS_PER_NODE": str(chips_per_node)} | {key: str(value) for key, value in said if key.isupper()},
        setup=("export NNODES NODE_RANK MASTER_ADDR MASTER_PORT",),
        before=NOTE,
        tail=f'"${{PRIMUS:-Primus}}/runner/primus-cli" direct -- train pretrain --config "$PWD/{FILE}"',
    )
    return export_run(ID, scenario, decisions, {FILE: yaml_text(table)}, command)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield Fixed("plan.engine", "primus", "what runs it is Primus, with Megatron inside")
    if is_hybrid(scenario.model):
        yield Say(f"{OVERRIDES}num_layers", len(pattern(scenario, cuts=False).split("/")[0]))
        yield Say(f"{OVERRIDES}is_hybrid_model", True)
        if needs_segments(scenario):
            why = "layers of a pattern are spread evenly over the ranks of a pipeline, under 1f1b"
            yield from lose(why, "plan.schedule.*", "plan.placement")
    for piece in admit_options(pieces(scenario), options("megatron")):
        if isinstance(piece, Say) and piece.option == PATTERN and needs_segments(scenario):
            # without cuts: the Megatron inside Primus is one before they came
            model_paths = [path for path in piece.paths if not path.startswith("plan.")]
            piece = Say(piece.option, pattern(scenario, cuts=False), *model_paths)
        yield from _key_pieces(piece)


def _key_pieces(piece: Piece) -> Iterator[Piece]:
    if isinstance(piece, Fixed) and piece.path == "plan.engine":
        return
    if isinstance(piece, Say) and piece.option.startswith("torchrun"):
        return
    if isinstance(piece, (Fixed, Lose, Like)) or not piece.option.startswith("--"):
        yield piece
        return
    key, value = key_of(piece.option.removeprefix("--"), piece.value)
    if key is None:
        yield from lose(f"no file of Primus has a key for {piece.option}", *piece.paths)
    else:
        yield Say(f"{OVERRIDES}{key}", value, *piece.paths)


def key_of(option: str, value: object) -> tuple[str | None, object]:
    """The key and its value that an option of Megatron's command line means; None where there is none.

    >>> key_of("tensor-model-parallel-size", 8), key_of("disable-bias-linear", True)
    (('tensor_model_parallel_size', 8), ('add_bias_linear', False))
    """
    if (option, value) == ("moe-flex-dispatcher-backend", "deepep"):
        return "use_turbo_deepep", True
    option_list = options(ID).values
    back = {name: key for key, name in NAMES.items()}
    opposite_names = {name: key for key, name in OPPOSITE.items()}
    readings = [(option, value), (back.get(option, ""), value), (opposite_names.get(option, ""), False)]
    if value is True and option.startswith("no-"):
        readings.append((option.removeprefix("no-"), False))
    for name, means in readings:
        key = name.replace("-", "_")
        if name and f"{OVERRIDES}{key}" in option_list:
            digits = isinstance(means, str) and means.isdigit()
            return key, list(means) if isinstance(means, tuple) else int(str(means)) if digits else means
    return None, None


def with_recomputed_layers(found: Imported, ids: object) -> Imported:
    """Recompute of the layers with these numbers, counted by pipeline rank.

    Layers stand in virtual stages in order, and stages are dealt to ranks in turn.
    """
    plan = found.settings["plan"]
    numbers = {int(number) for number in re.findall(r"\d{1,5}", str(ids))} if ids is not None else set()
    if not numbers or plan.get("recompute") == "none":
        return found
    layers, pp = load_model(found.settings["model"]).layers, plan.get("pp", 1)
    schedule = plan.get("schedule")
    chunks = schedule.get("chunks", 1) if isinstance(schedule, Mapping) else 1
    stages = pp * chunks
    placement = plan.get("placement") or [layers // stages + (stage < layers % stages) for stage in range(stages)]
    counts, first = [0] * pp, 0
    for stage, size in enumerate(placement):
        counts[stage % pp] += len(numbers & set(range(first, first + size)))
        first += size
    recompute = {"kind": "full", "layers": counts if len(set(counts)) > 1 else counts[0]}
    return found.with_settings(plan={"recompute": recompute})


def with_adapters(found: Imported, lora: object) -> Imported:
    """Adapters, where the experiment switches them on."""
    if not isinstance(lora, Mapping) or lora.get("enabled") is not True:
        return found
    given = lora.get("target_modules")
    modules = [str(word) for word in given] if isinstance(given, list) else list(LORA.values())
    targets = [target for target, name in LORA.items() if any(name in word for word in modules)]
    rank = lora.get("dim", RANK)
    adapters = {"rank": rank if type(rank) is int and rank > 0 else RANK, "targets": targets}
    return found.with_settings(workload={"task": "lora", "lora": adapters})


def bridge_words(said: JsonMapping, named: str | None, source: str) -> JsonObject:
    """Options in Megatron's words, the model under its catalog name among them."""
    recipe = str(said.get("recipe", ""))
    if recipe.startswith("primus."):
        given_text = f"the recipe {recipe.rpartition('.')[2][:60]}, which decides more than its arguments"
        raise refusal(given_text, "a recipe of Megatron-Bridge", path="recipe", where=source)
    model = named or _model(said, source)
    sparse = model in MODELS and has_experts(MODELS[model])
    needed_names = (*STATED, *(("expert_model_parallel_size",) if sparse else ()))
    if absent := [key for key in needed_names if type(said.get(key)) is not int]:
        expected_text = "a value beside the recipe's name, which is not here"
        raise InputError(Problem(path=key, given="nothing", expected=expected_text, where=source) for key in absent)
    full = {} if "recompute_granularity" in said or model not in RECOMPUTED else {"recompute-granularity": "full"}
    return {"model": model, **full, **dict(_options(said, source))}


def unstated_options(said: JsonMapping, options: JsonMapping) -> Iterator[str]:
    """What only the recipe would tell, and how it was read."""
    if "use_distributed_optimizer" not in said and said.get("use_megatron_fsdp") is not True:
        yield "shard = zero1: as in most recipes of Megatron-Bridge, of which this one is not here"
    if "recompute_granularity" not in said:
        kind = options.get("recompute-granularity", "none")
        yield f"recompute = {kind}: as in recipes of Megatron-Bridge for this model, of which this one is not here"


def _model(said: JsonMapping, source: str) -> str:
    path = str(said.get("hf_path") or "")
    flavor = str(said.get("flavor") or "").replace("_", "-")
    for name in (path, flavor.partition("-pretrain")[0].partition("-finetune")[0]):
        entry = find_name(name) if name else None
        if entry is not None:
            return entry[0]
    given_text, todo = (path or flavor or "nothing")[:80], "name the model with --model"
    raise refusal(given_text, "a known model", path="hf_path", todo=todo, where=source)


def _options(said: JsonMapping, source: str) -> Iterator[tuple[str, object]]:
    for key, value in {**COMMON, **said}.items():
        if value not in (None, False) and key in (*OPTIONS, *COMMON):
            yield OPTIONS.get(key, key.replace("_", "-")), value
    name = str(said.get("precision_config") or "bf16_mixed")
    if name not in RECIPES:
        raise refusal(name[:60], f"one of {', '.join(RECIPES)}", path="precision_config", where=source)
    yield from RECIPES[name].items()
    yield "accumulate-allreduce-grads-in-fp32", True
    if said.get("use_megatron_fsdp") is True:
        yield "data-parallel-sharding-strategy", "optim_grads_params"
    if said.get("stage") == "sft":
        yield "sft", True


def adapters(said: JsonMapping, beside: object, experts: bool) -> tuple[JsonMapping, tuple[str, ...]]:
    """Adapters as Primus's own table would say them, and what was assumed of them."""
    peft = str(said.get("peft") or "none").lower()
    if peft in ("none", "null"):
        return {}, ()
    adapter_settings: JsonMapping = beside if isinstance(beside, Mapping) else {}
    rank, modules = adapter_settings.get("dim", said.get("peft_dim")), adapter_settings.get("target_modules")
    notes = () if type(rank) is int else (f"lora: rank {BRIDGE_RANK}, as in recipes of Megatron-Bridge",)
    if peft != "lora":
        notes = (*notes, f"peft = {peft[:40]}: priced as LoRA")
    adapter_table: JsonObject = {"enabled": True, "dim": rank if type(rank) is int else BRIDGE_RANK}
    if isinstance(modules, list) or experts:
        adapter_table["target_modules"] = modules if isinstance(modules, list) else list(ATTENTION)
    return adapter_table, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimusRun:
    """One run.

    module  its framework, model, file of defaults and overrides
    place   what stands around it, the environment that a script sets included
    beside  tables of the experiment's file beside its modules
    notes   what was assumed or left out
    """

    module: JsonMapping
    name: str
    place: Checkout
    beside: JsonMapping = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())


def sources(files: Files) -> Iterator[PrimusRun]:
    """The runs that files name, the first of each kind."""
    place = checkout_of(files)
    for table in tables(files, *YAML):
        module = module_of(table.data)
        if module is not None:
            yield PrimusRun(module=module, name=table.source, place=place, beside=table.data)
    yield from _scripts(files)
    yield from _model_files(files)


def module_of(data: JsonMapping) -> JsonMapping | None:
    """The module of an experiment that trains."""
    modules = data.get("modules")
    for module in modules.values() if isinstance(modules, Mapping) else ():
        if isinstance(module, Mapping) and "framework" in module and "model" in module:
            return module
    return None


def _scripts(files: Files) -> Iterator[PrimusRun]:
    """Experiments that scripts start: `primus-cli direct -- train pretrain --config FILE --tp_size 2 ...`."""
    for name, text in files.items():
        if not name.endswith(SCRIPTS) or "primus" not in text.lower():
            continue
        place = checkout_of(files)
        script = read_script(text, place)
        for command in script.commands:
            words = {name: _value(values[0]) if values else True for name, values in split_options(command)}
            path = words.pop("config", None)
            is_experiment = isinstance(path, str) and path.endswith(YAML)
            module = module_of(table_of(str(path), place.named(str(path))) or {}) if is_experiment else None
            if module is not None:
                inner = module.get("overrides")
                stated_options = {**(inner if isinstance(inner, Mapping) else {}), **words}
                environment = {**script.environment, **place.environment}
                notes = tuple(f"left out: {note}" for note in dict.fromkeys(script.notes))[:12]
                filled_table = replace(place, environment=environment)
                yield PrimusRun(
                    module={**module, "overrides": stated_options}, name=name, place=filled_table, notes=notes
                )
                return


def _value(word: str) -> object:
    if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":  # quotes for the program's own parser
        return word[1:-1]
    if word.lower() in WORDS:
        return WORDS[word.lower()]
    return int(word) if word.lstrip("-").isdigit() and len(word) < 16 else word


def _model_files(files: Files) -> Iterator[PrimusRun]:
    folder = checkout_of(files).folder
    if folder is None or folder.parts[-4:-1] != ("primus", "configs", "models"):
        return
    for table in tables(files, *YAML):
        module = {"framework": folder.name, "config": DEFAULTS, "model": table.source}
        note = "a model file: batch, sequence, mesh and recompute are Primus's defaults"
        yield PrimusRun(module=module, name=table.source, place=checkout_of(files), notes=(note,))


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A YAML file of modules that name a framework and a model, a script that starts one, or a model file of Primus."""
    return any(True for _ in sources(files))


def read(files: Files) -> Imported:
    """The settings of an experiment."""
    for source in sources(files):
        return _read(source, files).with_notes(*source.notes)
    raise refusal(", ".join(files) or "no file", "an experiment of Primus")


def _world(files: Files, place: Checkout) -> int | None:
    """Ranks of the caller's machine, or of the one that a file written by Ridgeline names."""
    name = system_in(files)
    return place.chips or (load_system(name).chips if name is not None else None)


def _read(source: PrimusRun, files: Files) -> Imported:
    module, place = source.module, source.place
    framework = str(_read_value(module["framework"], place))
    if any(word in framework for word in IMAGES) or "diffusion" in str(module["model"]).lower():
        raise other_work(f"a model of images or video (framework {framework[:40]})", where=source.name)
    if framework not in FRAMEWORKS:
        expected_text = f"framework {', '.join(FRAMEWORKS)}"
        raise refusal(f"framework {framework[:40]}", expected_text, path="modules", where=source.name)
    stated_options: JsonObject = {}
    notes: list[str] = []
    model = str(_read_value(module["model"], place))
    for kind, name in (("modules", str(_read_value(module.get("config", ""), place))), ("models", model)):
        layer_table = _layers(place, (kind, framework), name, 0)
        if layer_table is None:
            notes.append(f"the file {name[:60]}, which is not here")
        stated_options = _over(stated_options, layer_table or {})
    other_keys = [key for key in stated_options if str(key).replace("_", "-") in OTHER_WORK]
    stated_options = {key: value for key, value in stated_options.items() if key not in other_keys}
    inner = module.get("overrides")
    stated_options = _fill_environment(_over(stated_options, inner if isinstance(inner, Mapping) else {}), place)
    if framework == "torchtitan":
        stated_options.setdefault("model", {}).setdefault("flavor", model)
        found_run = read_job(Table(data=stated_options, source=source.name), None)
    elif framework == "maxtext":
        table = filled_axes(Table(data=stated_options, source=source.name), place.chips or 0)
        found_run = read_table(table, place.model)
    elif framework == "megatron_bridge":
        found_run = _bridge(stated_options, source, replace(place, chips=_world(files, place)))
    else:
        found_run = _megatron(stated_options, model, source.name, replace(place, chips=_world(files, place)))
        found_run = replace(found_run, chips=None)
    values_requested = {str(key).replace("_", "-") for key in inner} if isinstance(inner, Mapping) else set()
    unread = tuple(  # thousands of defaults stand in the files: only what an experiment asks for can matter
        replace(part, matters=part.matters and (framework != "megatron" or part.option in values_requested))
        for part in found_run.unread
    )
    return replace(found_run, target=ID, unread=unread).with_notes(*(f"left out: {note}" for note in notes))


def _megatron(said: JsonMapping, model: str, source: str, place: Checkout) -> Imported:
    options = dict(_read_options(said))
    if options.pop("stage", None) == "sft":
        options["sft"] = True
    if place.seq is not None:
        options["seq-length"] = place.seq
    if place.model is not None:
        options["model"] = place.model
    elif options.get("model-type", "gpt") not in KINDS or "lfm-layer-types" in options:
        given_text = f"layers of {str(options.get('model-type', 'gpt'))[:40]} ({model[:60]})"
        expected_text, todo = "layers that the options spell", "name the model with --model"
        raise refusal(given_text, expected_text, path="model_type", todo=todo, where=source)
    elif "num-layers" not in options and "hybrid-layer-pattern" not in options:
        entry = find_name(re.sub(r"\.ya?ml$", "", model).replace("_", "-"))
        if entry is not None:
            options["model"] = entry[0]
    options.pop("finetune", None)
    ids = options.pop("recompute-layer-ids", None)
    imported_run = settings_of(Given(options=options, source=source, world=place.chips), ID, ID)
    return with_adapters(with_recomputed_layers(imported_run, ids), said.get("lora"))


def _bridge(said: JsonMapping, source: PrimusRun, place: Checkout) -> Imported:
    options = bridge_words(said, place.model, source.name)
    imported_run = settings_of(Given(options=options, source=source.name, world=place.chips), ID, ID)
    lora, notes = adapters(said, source.beside.get("peft"), has_experts(load_model(options["model"])))
    imported_run = imported_run.with_notes(*unstated_options(said, options), after=notes)
    return with_adapters(replace(imported_run, chips=None), lora)


def _over(below: JsonMapping, above: JsonMapping) -> JsonObject:
    return laid_over(below, above, lambda *_: False)


def _fill_environment(said: JsonMapping, place: Checkout) -> JsonObject:
    return {
        str(key): _fill_environment(value, place) if isinstance(value, Mapping) else _read_value(value, place)
        for key, value in said.items()
    }


def _layers(place: Checkout, at: tuple[str, str], name: str, depth: int) -> JsonObject | None:
    """A file of the software's own configuration, laid over those that it extends."""
    if place.top is None or not name or depth > DEEPEST or ".." in name:
        return None
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    text = place.text(place.top / "primus" / "configs" / at[0] / at[1] / path)
    if text is None:
        return None
    data = parse_table(path, text).data
    layer_options: JsonObject = {}
    for key in ("extends", "includes", "bases"):
        for below in data.get(key) or ():
            layer_options = _over(layer_options, _layers(place, at, str(below), depth + 1) or {})
    own = {key: value for key, value in data.items() if key not in ("extends", "includes", "bases")}
    return _over(layer_options, own)


def _read_value(value: object, place: Checkout) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\$\{(\w+)(?::-?([^}]*))?\}", value)
    if match is None:
        return re.sub(r"\$\{(\w+):-?([^}]*)\}", lambda at: place.environment.get(at.group(1)) or at.group(2), value)
    text = place.environment.get(match.group(1), match.group(2))
    if text is None:
        return value
    word = {"true": True, "false": False, "null": None, "": None}.get(text.lower(), text)
    if isinstance(word, str) and re.fullmatch(r"-?\d{1,15}", word):
        return int(word)
    return word


def _read_options(said: JsonMapping) -> Iterator[tuple[str, object]]:
    for key, value in said.items():
        name = str(key).replace("_", "-")
        if name in OPPOSITE:
            if value is False:
                yield OPPOSITE[name], True
            continue
        if value is None or value is False or isinstance(value, Mapping):
            continue
        yield NAMES.get(name, name), value
    if said.get("use_turbo_deepep") is True:
        yield "moe-token-dispatcher-type", "flex"
        yield "moe-flex-dispatcher-backend", "deepep"
