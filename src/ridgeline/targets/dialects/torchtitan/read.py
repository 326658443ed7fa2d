"""Turn torchtitan's job file, or a configuration function of it, into settings of a scenario.

Versions from 0.3 on are configured by Python functions that return a `Trainer.Config`. They are followed by
`targets.imports.python_eval`: functions, classes and their defaults come from the checkout that the file stands in, so
that a preset means what its own version says. Nothing is imported or executed.
"""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.models.load import MODELS
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.dialects.torchtitan.write import (
    ALSO_FLAVORS,
    CONVERTERS,
    DEBUG,
    FLAVORS,
    ID,
    SCHEDULES,
    UNTIED,
    same_shape,
)
from ridgeline.targets.imports.model_names import UNKNOWN, named_exactly, with_depth
from ridgeline.targets.imports.option_reader import OptionReader, holds, model_in, nest_options, only
from ridgeline.targets.imports.python_calls import deep_copy
from ridgeline.targets.imports.python_eval import Interpreter
from ridgeline.targets.imports.python_values import (
    MISSING,
    Made,
    Module,
    Outside,
    PythonFunction,
    Stop,
    Unknown,
    describe_value,
    is_known,
)
from ridgeline.targets.imports.reading_budget import ReadingBudget
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.option_table import imported_run, read_options
from ridgeline.targets.tables import values
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, refusal

RECOMPUTE = values(ID, "recompute")  # the class of activation_checkpoint -> its words in a job file
CONVERTER_CLASSES = table_words("torchtitan", "converter_classes")
FAMILIES = ("llama3", "llama4", "qwen3_5", "qwen3", "deepseek_v3", "gpt_oss", "kimi_k2_7", "kimi_k2")
KEPT = ("training", "parallelism", "compile")
# what a preset has to state: not guessed where only running it would tell
NEEDED = ("training.", "parallelism.")
LEFT = ("steps", "max_norm", "gc_freq", "seed", "deterministic")
COMPONENTS = "compile.components"
# matrices that adapters stand beside -> torchtitan's names of them
ADAPTED = {"qkv": ("wq", "wk", "wv", "wkv"), "out": ("wo",), "up": ("w3",), "gate": ("w1",), "down": ("w2",)}


def is_registry(files: Files) -> bool:
    """Whether a Python file builds configurations of torchtitan's trainer."""
    return any(_python(name) and "torchtitan" in text and "Trainer.Config" in text for name, text in files.items())


def job_of(files: Files) -> tuple[Table, tuple[str, ...]]:
    """The options of a job file that a function means, and what was left out.

    An `InputError` lists the functions of a file with several.
    """
    name, text = next((name, text) for name, text in files.items() if _python(name))
    source, _, chosen = name.partition("::")
    place = checkout_of(files)
    reading = Interpreter(checkout=place, hook=partial(_hook, place.budget))
    try:
        functions_by_name = _functions(reading.load(text, source))
        if chosen not in functions_by_name and (chosen or len(functions_by_name) != 1):
            todo = f"choose one: {source}::{min(functions_by_name)}" if functions_by_name else ""
            known_names = ", ".join(sorted(functions_by_name)[:40]) or "functions that return Trainer.Config"
            given_text = chosen or f"{len(functions_by_name)} functions"
            raise refusal(given_text, known_names, path=source, todo=todo)
        chosen = chosen or next(iter(functions_by_name))
        config = reading.follow(functions_by_name[chosen], (), {})
    except (Stop, RecursionError):
        given_text = "a function that does too much before it returns"
        raise InputError(Problem(path=source, given=given_text, expected="a configuration to read")) from None
    if not isinstance(config, Made):
        raise refusal(describe_value(config), "a Trainer.Config", path=chosen, where=source)
    folder = checkout_of(files).folder
    options = _options(config, chosen, folder.name if folder else "", source)
    notes = list(dict.fromkeys(reading.notes))
    if "graph_trainer" in chosen:
        notes.append("the graph that this trainer captures of a whole step: priced as its kernels, launched one by one")
    return Table(data=nest_options(options), source=source), tuple(notes)


def _python(name: str) -> bool:
    return name.partition("::")[0].endswith(".py")


def _functions(module: Module) -> dict[str, PythonFunction]:
    """Functions that say they return a configuration of a trainer, and need no arguments."""
    functions_by_name: dict[str, PythonFunction] = {}
    for name, one in module.scope.items():
        node = one.node if isinstance(one, PythonFunction) else None
        if isinstance(one, PythonFunction) and isinstance(node, ast.FunctionDef) and node.returns is not None:
            needs = len(node.args.args) > len(node.args.defaults) or None in node.args.kw_defaults
            if ast.unparse(node.returns).endswith("Trainer.Config") and not needs and not name.startswith("_"):
                functions_by_name[name] = one
    return functions_by_name


def _hook(budget: ReadingBudget, name: str, given: tuple[Any, ...], words: JsonObject) -> Any:
    """A model of the registry stays a name; vocabularies and datasets decide nothing here."""
    last = name.rpartition(".")[2]
    if last.endswith("model_registry"):
        return Made(name="model_registry", given=given, parts=words)
    if last == "to_graph_trainer_config" and given and isinstance(given[0], Made):
        config_copy: Made = deep_copy(given[0], budget)
        config_copy.parts.pop("compile", None)
        if config_copy.parts.get("activation_checkpoint") is not None:
            config_copy.parts["activation_checkpoint"] = Made(name="SelectiveAC.Config")
        return config_copy
    if last in ("decoder_vocab_size", "default_adamw") or last.endswith("DataLoader"):
        return Made(name=last, given=given, parts=words)
    return MISSING


def _options(made: Made, function: str, folder: str, source: str) -> JsonObject:
    options_found: JsonObject = {}
    wrong: list[Problem] = []
    for section in KEPT:
        parts = made.parts.get(section)
        for key, value in parts.parts.items() if isinstance(parts, Made) else ():
            name = f"{section}.{key}"
            if isinstance(value, Unknown) and name.startswith(NEEDED) and key not in LEFT:
                expected_text = "a value that the file states"
                wrong.append(Problem(path=name, given=str(value)[:80], expected=expected_text, where=source))
            elif is_known(value) and not isinstance(value, Made):
                options_found[name] = value
    if wrong:
        raise InputError(wrong)
    if options_found.pop("compile.enable_async_tensor_parallel", False):
        options_found["parallelism.enable_async_tensor_parallel"] = True
    chosen = made.parts.get("activation_checkpoint", Made(name="SelectiveAC.Config"))
    kind = chosen.name.split(".")[-2 if "." in chosen.name else 0] if isinstance(chosen, Made) else str(chosen)
    options_found |= {f"activation_checkpoint.{key}": word for key, word in RECOMPUTE.get(kind, {"mode": kind}).items()}
    options_found |= _optimizer(made.parts.get("optimizer"))
    options_found |= _model(made.parts.get("model_spec"), function, folder)
    if isinstance(assets := made.parts.get("hf_assets_path"), str):
        options_found["model.hf_assets_path"] = assets
    return options_found


def _optimizer(optimizer: Any) -> JsonObject:
    """Its name; of several groups of weights, Muon's, which takes the matrices."""
    parts = optimizer.parts if isinstance(optimizer, Made) else {}
    if isinstance(parts.get("name"), str):
        return {"optimizer.name": parts["name"]}
    groups = parts.get("param_groups")
    objects_made = [group for group in groups if isinstance(group, Made)] if isinstance(groups, list) else []
    optimizer_names = [group.parts.get("optimizer_name") for group in objects_made]
    if any(isinstance(name, str) and "muon" in name.lower() for name in optimizer_names):
        return {"optimizer.name": "Muon"}
    return {}


def _model(spec: Any, function: str, folder: str) -> JsonObject:
    """The family by the file's folder or the function's name, the flavor by what the registry is asked for."""
    family = next((name for name in FAMILIES if folder == name), None)
    family = family or next((name for name in FAMILIES if name in function), function)
    model_options: JsonObject = {"model.name": family}
    if not isinstance(spec, Made) or spec.name != "model_registry":
        return model_options | {"model.flavor": "unknown"}
    first = spec.given[0] if spec.given else spec.parts.get("flavor", "unknown")
    model_options["model.flavor"] = str(first)[:60] if isinstance(first, str) else "unknown"
    if isinstance(spec.parts.get("moe_comm_backend"), str):
        model_options["parallelism.expert_parallel_comm_backend"] = spec.parts["moe_comm_backend"]
    if type(spec.parts.get("num_mtp_layers")) is int and spec.parts["num_mtp_layers"]:
        model_options["model.num_mtp_layers"] = spec.parts["num_mtp_layers"]
    names: list[str] = []
    converters = spec.parts.get("converters")
    for converter in converters if isinstance(converters, list) else ():
        if isinstance(converter, (Made, Outside)):
            kind = converter.name.removesuffix(".Config").split(".")[-1]
            if kind == "LoRAConverter" and isinstance(converter, Made):
                rank, modules = converter.parts.get("rank"), converter.parts.get("target_modules")
                model_options["lora.rank"] = rank if type(rank) is int else 8
                if isinstance(modules, list):
                    model_options["lora.target_modules"] = [str(name) for name in modules]
                continue
            names.append(CONVERTER_CLASSES.get(kind, kind))
            if kind == "Float8LinearConverter" and isinstance(converter, Made):
                recipe = converter.parts.get("recipe_name", "rowwise")
                model_options["quantize.linear.float8.recipe_name"] = recipe if isinstance(recipe, str) else "rowwise"
    return model_options | ({"model.converters": names} if names else {})


def read(files: Files) -> Imported:
    """What a job file says."""
    expected_text = (
        "one TOML file with [model], [training] and [parallelism], or a Python file of Trainer.Config functions"
    )
    if is_registry(files):
        table, notes = job_of(files)
        return read_job(table, checkout_of(files).model, notes)
    return read_job(only(files, _is_job, expected_text, ".toml"), checkout_of(files).model or model_in(files))


def read_job(table: Table, named: str | None, notes: tuple[str, ...] = ()) -> Imported:
    """What the options of a job file say; `named` stands in for a flavor that no catalog entry is."""
    reader = OptionReader(table)
    reader.assumptions += [f"left out: {note}" for note in notes]
    model_read = _read_model(reader)
    model = model_read or named
    if model_read is None and named is not None:
        reader.notes.clear()
    spec = load_model(model) if model else None
    plan = _mesh(reader) | {"engine": "torchtitan"}
    plan |= _stages(reader, spec.layers if spec else None, plan)
    plan |= _recompute(reader, spec, plan)
    precision, optimizer = _formats(reader)
    if reader.switch("training.enable_cpu_offload", "experimental.enable_cpu_offload"):
        plan["offload"] = ["optimizer"]
    is_compiled, parts = reader.switch("compile.enable", "training.compile"), reader.take(COMPONENTS)
    is_compiled = is_compiled and (not isinstance(parts, list) or "model" in parts)
    plan |= {"precision": precision, "compiled": is_compiled}
    batch, per_rank = _batch(reader, plan)
    workload = {"kind": "train", "seq": _seq(reader), "global_batch": batch, "optimizer": optimizer, **_lora(reader)}
    return imported_run(ID, reader, {"model": model, "workload": workload, "plan": plan}, per_rank=per_rank)


def _read_model(reader: OptionReader) -> str | JsonObject | None:
    """The flavor's catalog entry; the folder of the tokenizer tells apart models that share a shape."""
    family = str(reader.take("model.name", default="llama3"))
    flavor = str(reader.take("model.flavor", default="debugmodel"))
    ahead = reader.size("model.num_mtp_layers")
    plain = re.sub(r"_(flex|varlen|sdpa|non_fused)\w*$", "", flavor)
    id = FLAVORS.get((family, plain)) or ALSO_FLAVORS.get((family, plain))
    folder = str(reader.take("model.hf_assets_path", "model.tokenizer_path", default=""))[:300]
    if id is None and (family, plain) in UNTIED:
        return {"base": UNTIED[family, plain], "tied": False}
    if id is None and (family, plain) in DEBUG:
        return {**DEBUG[family, plain], **({"mtp": ahead} if ahead else {})}
    if id is None:
        reader.note("model.flavor", f"{family} {flavor}"[:60], UNKNOWN)
        return None
    for name in reversed(folder.strip("/").split("/")):
        closer = named_exactly(name) if len(name) < 100 else None
        if closer and same_shape(MODELS[closer], MODELS[id]):
            id = closer
            break
    trained_model = with_depth(id, ahead or 0) if family == "deepseek_v3" else id
    if trained_model != id:
        reader.assumptions.append(f"mtp = {ahead or 0}: what the files ask for, not what the model was published with")
    return trained_model


def _lora(reader: OptionReader) -> JsonObject:
    rank = reader.count("lora.rank")
    names = reader.take("lora.target_modules")
    if rank is None:
        return {}
    modules = [str(name) for name in names] if isinstance(names, list) else None
    targets = [target for target, parts in ADAPTED.items() if modules is None or set(parts) & set(modules)]
    return {"task": "lora", "lora": {"rank": rank, "targets": targets}}


def _mesh(reader: OptionReader) -> JsonObject:
    plan = read_options(ID, "mesh", reader) | {"overlap": {}}
    if plan["tp"] > 1:
        plan["overlap"]["tp"] = reader.switch("parallelism.enable_async_tensor_parallel")
    reader.skip("parallelism.enable_async_tensor_parallel")
    if not reader.switch("parallelism.enable_sequence_parallel", default=True) and plan["tp"] > 1:
        plan["sequence_parallel"] = False
    method = reader.take("parallelism.context_parallel_rotate_method", default="allgather")
    if plan["cp"] > 1:
        plan["cp_kind"] = "ring"
        if method == "allgather":
            reader.assumptions.append("cp_kind = ring: keys are gathered at once, which is priced as a ring")
    plan |= read_options(ID, "experts", reader)
    return plan | _shards(reader, plan["cp"], plan["pp"]) | _pipeline(reader, plan)


def _shards(reader: OptionReader, cp: int, pp: int) -> JsonObject:
    replicate = reader.degree("parallelism.data_parallel_replicate_degree")
    model_given = reader.take("parallelism.data_parallel_shard_degree", default=-1)
    split = None if model_given == -1 else reader.count("parallelism.data_parallel_shard_degree")
    policies = {"default": "zero3" if pp == 1 else "zero2", "always": "zero3", "never": "zero2"}
    shard = reader.word("parallelism.fsdp_reshard_after_forward", among=policies, default=policies["default"])
    if split is None:
        if replicate > 1:
            why = "how many ranks share a shard follows from the number of ranks, which is not stated"
            reader.note("parallelism.data_parallel_shard_degree", "-1", why, matters=False)
        return {"shard": shard}
    if split * cp == 1:
        return {"shard": "none", "dp": replicate}
    return {"shard": shard, "dp": replicate * split, "shard_degree": split * cp}


def _pipeline(reader: OptionReader, plan: JsonObject) -> JsonObject:
    means = {word: name for name, word in SCHEDULES.items()}
    parts = reader.take("parallelism.module_fqns_per_model_part")
    overlap = reader.switch("parallelism.pipeline_parallel_expert_parallel_overlap", default=True)
    if plan["pp"] == 1:
        reader.skip(*(f"parallelism.pipeline_parallel_{name}" for name in ("schedule", "microbatch_size")))
        return {}
    name = reader.word("parallelism.pipeline_parallel_schedule", among=means, default="1f1b")
    chunks = 1 if name in ("1f1b", "gpipe") else 2
    stage_plan: JsonObject = {}
    if name == "dualpipe-v" and plan["ep"] > 1:
        plan["overlap"]["moe"] = overlap
    if isinstance(parts, list) and parts and all(isinstance(part, list) for part in parts):
        stage_plan["placement"] = [sum(str(module).startswith("layers.") for module in part) for part in parts]
        chunks = max(1, len(parts) // plan["pp"])
    return stage_plan | {"schedule": {"name": name, "chunks": chunks}}


def _stages(reader: OptionReader, layers: int | None, plan: JsonObject) -> JsonObject:
    """Layers of every virtual stage as torchtitan deals them: the embedding and the output count as layers too."""
    layers_each = reader.count("parallelism.pipeline_parallel_layers_per_stage")
    ends = [reader.size(f"parallelism.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")]
    if plan["pp"] == 1 or layers is None or "placement" in plan:
        return {}
    first, last = (1 if end is None else end for end in ends)
    schedule = dict(plan["schedule"])
    if layers_each is not None:
        schedule["chunks"] = max(1, -(-(layers + first + last) // layers_each) // plan["pp"])
    count = plan["pp"] * schedule["chunks"]
    share, more = divmod(layers + first + last, count)
    layers_held = [share + (stage < more) for stage in range(count)]
    layers_held[0] -= first
    layers_held[-1] -= last
    if min(layers_held) < 0:
        expected_text = f"no more stages than {layers} layers fill"
        reader.bad("parallelism.pipeline_parallel_degree", plan["pp"], expected_text, None)
    return {"schedule": schedule} | ({"placement": layers_held} if len(set(layers_held)) > 1 else {})


def _seq(reader: OptionReader) -> int | None:
    """Tokens of a sequence; what a file leaves to the version's default is said."""
    count_read = reader.count("training.seq_len", "training.max_context_length")
    if count_read is None:
        reader.assumptions.append("seq = 2048: the files do not say it")
    return count_read or 2048


def _batch(reader: OptionReader, plan: JsonObject) -> tuple[int | None, int | None]:
    """The global batch, or the sequences of one data-parallel rank where it is not stated."""
    slot_tokens = reader.count("training.num_tokens_per_microbatch_per_dp_rank")
    seq = reader.options.get("training.max_context_length", 2048)
    slots = max(1, slot_tokens // seq) if slot_tokens is not None and type(seq) is int and seq > 0 else None
    local = slots or reader.count("training.local_batch_size", "training.batch_size")
    if local is None:
        reader.assumptions.append("microbatch = 8: the files do not say it")
    local = local or 8
    stated = reader.take("training.global_batch_size", default=-1)
    global_batch = None if stated == -1 else reader.count("training.global_batch_size")
    tokens = reader.take("training.num_tokens_per_train_step", default=-1)
    if type(tokens) is int and tokens > 0:
        global_batch = max(1, tokens // (_seq(reader) or 1))
    if plan["pp"] > 1 and slots is not None:  # in tokens of one microbatch
        plan["microbatch"] = slots
        count = reader.count("parallelism.num_pp_microbatches", "parallelism.pipeline_parallel_num_microbatches")
        local = slots * (count or 1)
    elif plan["pp"] > 1:
        plan["microbatch"] = reader.degree("parallelism.pipeline_parallel_microbatch_size")
    else:
        plan["microbatch"] = local
    if global_batch is not None:
        return global_batch, None
    return (local * plan["dp"], None) if "dp" in plan else (None, local)


def _recompute(reader: OptionReader, model: ModelSpec | None, plan: JsonObject) -> JsonObject:
    kinds = {"none": "none", "full": "full", "selective": "selective"}
    by_op: JsonObject = {"recompute": {"kind": "selective", "parts": ["alternate"]}}
    if reader.take("activation_checkpoint.mode") == "memory_budget":
        reader.assumptions.append("recompute = selective: a memory budget chooses it while compiling")
        return by_op
    kind = reader.word("activation_checkpoint.mode", among=kinds, default="selective")
    option = str(reader.take("activation_checkpoint.selective_ac_option", default="2"))
    if kind != "selective":
        return {"recompute": kind}
    if option == "op" or not option.isdigit() or model is None:
        return by_op
    layers_held = model.layers // (plan["pp"] * plan.get("schedule", {}).get("chunks", 1))
    layers = layers_held // max(1, int(option[:4]))
    note = f"recompute: every layer whose number {option} divides, {layers} of {layers_held} in a stage"
    reader.assumptions.append(note)
    return {"recompute": {"kind": "full", "layers": layers}}


def _formats(reader: OptionReader) -> tuple[JsonObject, JsonObject]:
    long = {"bfloat16": "bf16", "float32": "fp32"}
    stored_format = reader.word("training.mixed_precision_param", among=long, default="bf16")
    format_kept = reader.word("training.dtype", among=long, default="fp32")
    reader.skip("training.mixed_precision_reduce")
    precision: JsonObject = {"name": stored_format, "gradients": "fp32"}
    converters = reader.take("model.converters", default=[])
    listed = converters.replace(" ", "").split(",") if isinstance(converters, str) else converters
    words = [str(part) for part in listed]
    for word in words:
        if word.split(".")[-1] not in ("float8", "mx", "nvfp4", "primus_turbo", ""):
            reader.note("model.converters", word[:60], "not a format this reader knows")
    for family, compute in (("float8", "fp8-e4m3"), ("mx", "mxfp8"), ("nvfp4", "nvfp4")):
        if any(word.split(".")[-1] == family for word in words):
            recipes = {recipe: means for (kind, recipe), means in CONVERTERS.items() if kind == family}
            options = (f"quantize.linear.{family}.recipe_name", f"{family}.recipe_name")
            default = (compute, "tensor" if family == "float8" else "block")
            recipes["rowwise_with_gw_hp"] = ("fp8-e4m3", "row")
            means = reader.word(*options, among=recipes, default=default)
            precision |= {"compute": means[0], "scaling": means[1]}
            precision |= {"weights": stored_format, "activations": stored_format, "kv": stored_format}
            precision.pop("name", None)
            reader.skip(f"quantize.grouped_mm.{family}.fqns")
    optimizer = read_options(ID, "formats", reader)
    pure_bf16 = format_kept == "bf16" and stored_format == "bf16"
    optimizer |= {"states": format_kept, "master": "none" if pure_bf16 or stored_format == "fp32" else "fp32"}
    return precision, optimizer


def _is_job(data: JsonObject) -> bool:
    return isinstance(data.get("model"), dict) and "flavor" in data["model"] and "training" in data


def recognises(files: Files) -> bool:
    """A TOML file whose [model] has a flavor, or a Python file that builds a `Trainer.Config`."""
    return is_registry(files) or holds(files, _is_job, ".toml")
