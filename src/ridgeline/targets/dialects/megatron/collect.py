"""Turn scripts and tables in Megatron's words into options by name: the command that starts a run, or `MODEL_ARGS`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.core.files import parse_table
from ridgeline.targets import target
from ridgeline.targets.imports.option_reader import model_in
from ridgeline.targets.imports.run_files import SCRIPTS, RunFiles, checkout_of
from ridgeline.targets.imports.shell_eval import read_script, scripts_among
from ridgeline.targets.imports.shell_expand import Script, display_word, split_words
from ridgeline.targets.options import options
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, refusal

TABLES = (".yaml", ".yml", ".json")
BLOCKING = ("CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING")
NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")
SIGNS = ("num-layers", "hybrid-layer-pattern", "hybrid-override-pattern")  # of a run that spells its model
LESS = ("tensor-model-parallel-size", "micro-batch-size", "seq-length")  # of a run whose model is named elsewhere
# options of trainers that count layers too, and programs of transformers that take Megatron's words
FOREIGN = re.compile(r"--hidden_width\b|--num_key_value_heads\b|\b(ds_train|finetune)_huggingface_\w+\.py")
ARGUMENTS = ("MODEL_ARGS", "model_args")
GENERATES = "generation of text"
SEES = "a model that sees"
OTHER_WORK = table_words("megatron", "other_work")
# of MindSpeed-LLM's --stage
PREFERENCES = dict.fromkeys(("dpo", "simpo", "orm", "prm", "rm"), "training by preferences") | dict.fromkeys(
    ("ppo", "ray_ppo", "ray_grpo", "ray_online_dpo", "trl_ppo"), "reinforcement learning"
)
ENCODERS = {"bert": "an encoder", "t5": "a model with an encoder", "retro": "retrieval"} | dict.fromkeys(
    ("vit", "multimodal", "mimo"), "a model that sees"
)
PROGRAMS = table_words("megatron", "programs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Options as a run's files give them: names without dashes, values as words or numbers, True for a flag.

    world    ranks that are started, where the files say it
    program  the Python program that is started
    path     the file's name and folder, which often name the model
    texts    files that the script writes, or that stand beside it, by the name it uses
    """

    options: JsonMapping
    source: str
    world: int | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""  # the model that a file written by Ridgeline names
    program: str = ""
    path: str = ""
    texts: Mapping[str, str] | None = None


def collect(files: Files) -> Given:
    """The options of the first script that starts a run; without one, of the first table that holds any."""
    run_options = _collect(files)
    folder = checkout_of(files).folder
    path = f"{folder.name if folder else ''}/{run_options.source}"
    return replace(_with_switches(run_options, files), hint=model_in(files) or "", path=path)


def _with_switches(found: Given, files: Files) -> Given:
    """One expert for each token, where the checkout's Megatron is of the time when there was no other choice."""
    silent = "num-experts" in found.options and not {"moe-router-topk", "topk"} & set(found.options)
    software = checkout_of(files).named("megatron/arguments.py") if silent else None
    if software is None or "--num-experts" not in software or "--moe-router-topk" in software:
        return found
    several = "top2" in str(found.options.get("routing-mode", ""))
    return replace(found, options={**found.options, "moe-router-topk": 2 if several else 1})


def _collect(files: Files) -> Given:
    model_name = checkout_of(files).model is not None
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            run_options = from_script(name, text, files, model_name)
            if run_options is not None:
                return run_options
    for name, text in files.items():
        if name.endswith(TABLES):
            table = arguments_of(parse_table(Path(name), text).data)
            filled_table = _filled_by_script(name, table, files) if table is not None else None
            if filled_table is not None:
                return filled_table
            if table is not None:
                return Given(options=_fill_variables(table, checkout_of(files).environment), source=name)
    _refuse_other_programs(files)
    expected_text = "a script that passes --num-layers to a training program, or a table with num-layers"
    todo = "a script called with arguments or environment: say them with --arg and --env"
    raise refusal(", ".join(files) or "no file", expected_text, todo=todo)


def _refuse_other_programs(files: Files) -> None:
    """Say what scripts start where that is known to be no training, whatever it is called with."""
    for name, script in scripts_among(files):
        for command in script.commands:
            program = next((word for word in command if word.endswith(".py")), "")
            if program and not _only_prints(command):
                other_work(Given(options={}, source=name, program=program))


def _filled_by_script(name: str, table: JsonMapping, files: Files) -> Given | None:
    """A table that leaves its numbers to variables, as a script above it in the checkout fills it in."""
    place = checkout_of(files)
    if place.folder is None or not any(isinstance(value, str) and "${" in value for value in table.values()):
        return None
    for folder in [parent for parent in place.folder.parents if place.top and parent.is_relative_to(place.top)][:4]:
        for path in sorted(folder.glob("*.sh"), key=lambda path: ("sbatch" not in path.name, path.name))[:20]:
            text = place.text(path) or ""
            if "envsubst" in text and ".MODEL_ARGS" in text:
                environment = {"MODEL": Path(name).stem, **place.environment}
                run = RunFiles({path.name: text}, replace(place, folder=folder, environment=environment))
                run_options = from_script(path.name, text, run)
                if run_options is not None and not any("$" in str(run_options.options.get(sign)) for sign in LESS):
                    note = f"what MODEL is: taken as {environment['MODEL']}, for which {path.name} fills the table in"
                    return replace(run_options, notes=(note, *run_options.notes), source=name)
    return None


def arguments_of(data: JsonMapping) -> JsonObject | None:
    """The options of a table: its own keys, or those below `MODEL_ARGS`; None where there are none."""
    inner = next((data[key] for key in ARGUMENTS if isinstance(data.get(key), Mapping)), None)
    rows = (data if inner is None else inner).items()
    plain = {str(key).lstrip("-").replace("_", "-"): value for key, value in rows if not isinstance(value, Mapping)}
    if inner is None and not any(sign in plain for sign in SIGNS):
        return None
    return {key: _split_list(value) for key, value in plain.items() if value is not False and value is not None}


def _fill_variables(table: JsonObject, environment: Mapping[str, str]) -> JsonObject:
    """Options with `${NAME}` filled in from the environment that the caller gives."""
    options_filled = dict(table)
    for name, value in table.items():
        if isinstance(value, str) and "$" in value:
            words = [environment.get(key, f"${{{key}}}") for key in re.findall(r"^\$\{?(\w+)\}?$", value)]
            options_filled[name] = _value(words[0]) if words else value
    return {name: True if value == "true" else value for name, value in options_filled.items() if value != "false"}


def _split_list(value: object) -> object:
    """A value of a table as a command line would pass it: `"[a b]"` is two words."""
    if isinstance(value, str):
        words = value[1:-1].split() if re.fullmatch(r"\[[\w .-]*\]", value) else [value]
        values = [_value(word) for word in words]
        return values[0] if len(values) == 1 else values
    return value


def from_script(name: str, text: str, files: Files | None = None, named: bool = False) -> Given | None:
    """What a script passes to the Python program it starts; None when no command starts one."""
    script = read_script(text, checkout_of(files or {}))
    signs = (*SIGNS, *LESS) if named else SIGNS
    runs = sorted(
        (command for command in script.commands if set(signs) & set(parse_options(command))), key=_only_prints
    )
    if not runs:
        # options that a script only keeps in variables, for another to start a run with
        words = [word for values in script.variables.values() for word in split_words(script, " ".join(values))]
        options_parsed = parse_options(display_word(word) for word in words)
        if not options_parsed or not any(f"--{sign}" in words for sign in SIGNS):
            return None
        note = "which command takes the options that the script keeps in variables"
        return Given(options=options_parsed, source=name, notes=(*dict.fromkeys(script.notes), note))
    run_options = _options_of_command(name, script, runs[0])
    other_items = {str(key) for run in runs[1:] if (key := _key(parse_options(run))) != _key(run_options.options)}
    if not other_items or not run_options.program:
        return run_options
    return replace(run_options, notes=(f"{len(other_items)} further runs that the script starts", *run_options.notes))


def _only_prints(command: list[str]) -> bool:
    return command[0] in ("echo", "printf")


def _key(options: JsonMapping) -> tuple[object, ...]:
    """What tells runs of one script apart: the same command is often printed before it is run."""
    return tuple(options.get(name) for name in (*SIGNS, *LESS, "pipeline-model-parallel-size", "global-batch-size"))


def _options_of_command(name: str, script: Script, command: list[str]) -> Given:
    # the program, or the module that `python -m` or `torchrun -m` starts, not the launcher's own
    modules = (at + 1 for at, word in enumerate(command[:-1]) if word in ("-m", "--module"))
    module = next((at for at in modules if "." in command[at] and not command[at].startswith("torch.")), -1)
    start = next((index for index, word in enumerate(command) if word.endswith(".py")), module)
    program = command[start] if start >= 0 else ""
    options_parsed = parse_options(command[start + 1 :])
    options_parsed |= {key: value for key, value in script.environment.items() if key in BLOCKING}
    return Given(
        options=options_parsed,
        source=name,
        world=_world(parse_options(command[: max(start, 0)]), script),
        notes=tuple(dict.fromkeys(script.notes)),
        program=program if program.endswith(".py") or not program else program.replace(".", "/") + ".py",
        texts=script.texts,
    )


def parse_options(words: Iterable[str]) -> JsonObject:
    """Options by name without dashes; one value as itself, several as a list, none as True.

    >>> parse_options(["--tp", "8", "--bf16", "--modules", "a", "b", "--x=1e-3"])
    {'tp': 8, 'bf16': True, 'modules': ['a', 'b'], 'x': 0.001}
    """
    flags = options("megatron").flags
    values_by_name: dict[str, list[Any]] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            values_by_name[name] = [_value(value)] if equals else []
            name = "" if equals else name
        elif name and not (name in flags and not values_by_name[name]):  # what follows a flag is not its value
            values_by_name[name].append(_value(word))
    values_of = values_by_name.items()
    return {name: True if not values else values[0] if len(values) == 1 else values for name, values in values_of}


def _value(word: str) -> str | int | float:
    if NUMBER.fullmatch(word) is None or len(word) > 40 or word.endswith("_"):
        return word
    word = word.replace("_", "")
    return int(word) if word.lstrip("+-").isdigit() else float(word) if math.isfinite(float(word)) else word


def world_of(files: Files) -> int | None:
    """Ranks that the first script with torchrun's numbers starts."""
    for _, script in scripts_among(files):
        for command in script.commands:
            ranks = _world(parse_options(command), script)
            if ranks is not None:
                return ranks
    return None


def _world(launch: JsonMapping, script: Script | None = None) -> int | None:
    """Ranks that torchrun, DeepSpeed's launcher or Slurm starts, where both numbers are known."""
    chips_per_node = _first(launch.get("nproc-per-node", launch.get("num-gpus")))
    nodes = _first(launch.get("nnodes", launch.get("num-nodes", 1)))
    if type(nodes) is str and re.fullmatch(r"\d{1,5}:\d{1,5}", nodes):
        nodes = int(nodes.split(":")[0])
    if type(nodes) is int and type(chips_per_node) is int and nodes > 0 and chips_per_node > 0:
        return nodes * chips_per_node
    if script is not None and chips_per_node is None:
        names = ("SLURM_NNODES", "SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE")
        texts = [script.slurm_variables.get(name) or script.variables.get(name, [""])[0] for name in names]
        nodes, chips, tasks = (int(text) if text.isdigit() and len(text) < 7 else 0 for text in texts)
        return nodes * (chips or (tasks if tasks > 1 else 0)) or None
    return None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def other_work(found: Given) -> str:
    """What a run does that does not train a decoder; nothing for one that does.

    A run that generates text is followed; an `InputError` refuses what a scenario cannot hold.
    """
    if "_huggingface" in found.program and "eval" not in found.program:  # models and batches of other software
        trainer_text = f"training by transformers ({found.program.split('/')[-1]})"
        raise refusal(trainer_text, "a program of Megatron", where=found.source)
    what = next((means for sign, means in PROGRAMS.items() if sign in found.program), None)
    names_model = "model" in found.options  # by the caller, who knows what it sees
    works = (name for name in OTHER_WORK if name in found.options)
    option = next((name for name in works if not (names_model and OTHER_WORK[name] == SEES)), None)
    stage = PREFERENCES.get(str(found.options.get("stage", "")))
    folder = re.match(r"(bert|t5|retro|vit|multimodal|mimo)[-_]", found.path.lower())
    if "BertWordPiece" in str(found.options.get("tokenizer-type", "")) or "bert-no-binary-head" in found.options:
        what = what or "an encoder"
    elif folder and not found.program and "num-layers" in found.options:  # the test's folder tells the program
        what = what or ENCODERS[folder.group(1)]
    what = what or stage
    if what is None and option is None:
        return ""
    work_requested = OTHER_WORK[option] if option else ""
    if GENERATES in (what, work_requested) and {what, work_requested} <= {GENERATES, None, ""}:
        return GENERATES
    if what == GENERATES:  # of a model that a scenario cannot hold
        what = ""
    given_text = f"{what} ({found.program.split('/')[-1]})" if what and found.program else what
    given_text = given_text or f"{work_requested} (--{option})"
    todo = "name the model with --model" if work_requested == SEES else ""
    raise target.other_work(given_text, todo=todo, where=found.source)


def speaking(files: Files) -> Iterator[str]:
    """The texts of scripts and tables that speak of a model's layers in Megatron's words."""
    for name, text in files.items():
        if FOREIGN.search(text):
            continue
        spells = re.search(r"--(num[-_]layers|hybrid[-_]\w+[-_]pattern)(?![\w-])", text)
        script = name.endswith(SCRIPTS) and (spells or _hands_on(name, text, files))
        table = name.endswith((".yaml", ".yml")) and re.search(r"^(--|)(num[-_]layers|hybrid-\S+)\s*:", text, re.M)
        if script or table or (name.endswith((".yaml", ".yml")) and re.search(r"^MODEL_ARGS:", text, re.M)):
            yield text


def _hands_on(name: str, text: str, files: Files) -> bool:
    """Whether a script without a model of its own starts or sources another that has one."""
    starts = re.search(r"\bbash \S{0,200}\.sh\b", text) and re.search(r"^(export )?MODEL=|\sMODEL=", text, re.M)
    sources = re.search(r"^[ \t]*(\.|source) \S", text, re.M) and re.search(r"--[a-z]+[-_]\S{3}", text)
    if not starts and not sources:
        return False
    try:
        return from_script(name, text, files) is not None
    except InputError:
        return False
