"""Turn a recipe of Megatron-Bridge into the fields of the configuration it returns, by reading its syntax.

The recipe and what it calls inside its checkout are followed by `imports.python_eval`; nothing is executed. What only
the installed software would tell is known here by name: a published model (`AutoBridge.from_hf_pretrained`), a named
mixed-precision recipe, the common configuration, the choice of a dispatcher for experts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import MODELS, find_name
from ridgeline.models.load import model as load_model
from ridgeline.targets.dialects.megatron.collect import Given, world_of
from ridgeline.targets.dialects.megatron.read import settings_of
from ridgeline.targets.dialects.megatron_bridge import write as bridge
from ridgeline.targets.imports.option_reader import model_in
from ridgeline.targets.imports.python_eval import Interpreter
from ridgeline.targets.imports.python_values import (
    MISSING,
    Bound,
    Class,
    Frame,
    Made,
    Module,
    Outside,
    PythonFunction,
    Stop,
    Unknown,
    describe_value,
    is_known,
    weigh,
)
from ridgeline.targets.imports.run_files import Checkout, checkout_of
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.target import Files, Imported, other_work, refusal

DEEPEST = 8  # objects inside each other
MOST_FIELDS = 5000
PUBLISHED = "published model "  # how the name of an object made from one begins
HANDED_ON = frozenset({".to_megatron_provider", ".get_model_config", ".to_text_provider", ".finalize"})
AXES = ("tensor_model", "pipeline_model", "context", "expert_model")
OFF = ("use_transformer_engine_op_fuser", "use_te_rng_tracker")  # switches that a provider leaves off
# calls of the software that runs: what they answer at the start of a run on the version that is recorded
ANSWERS = {
    "_supports_cuda_graph_modules": True,
    "dist.is_initialized": False,
    "torch.distributed.is_initialized": False,
    "torch.cuda.is_available": True,
}
NAMES = {field: option for option, field in bridge.FIELDS.items()}
FORMATS = {code: word for word, code in bridge.DTYPES.items()}
SIDES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
SECTIONS = frozenset(table_names("megatron-bridge", "sections"))
PATTERNS = ("model.hybrid_layer_pattern", "model.hybrid_override_pattern")
NO_DECODER = re.compile(r"\b(Wan|Flux|DiT|Dit|Diffusion|Mimo|MIMO)\w*(Provider|Config)\b")
ALL_LINEAR = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFields:
    """Fields by dotted name, what was left out, and the fields whose value only running the recipe would tell."""

    fields: JsonObject
    notes: tuple[str, ...]
    unknown: dict[str, str]
    function: str = ""


def read_recipe(text: str, chosen: str = "", source: str = "", checkout: Checkout | None = None) -> RecipeFields:
    """The fields that a recipe sets; an `InputError` lists the recipes of a file that holds several."""
    reading = Interpreter(checkout=checkout or Checkout(), hook=_hook, present=_present)
    try:
        return _read(reading, reading.load(text, source), chosen, source)
    except (Stop, RecursionError):
        given_text = "a recipe that does too much before it returns"
        raise InputError(Problem(path=source, given=given_text, expected="a configuration to read")) from None


def _read(reading: Interpreter, module: Module, chosen: str, source: str) -> RecipeFields:
    names = dict.fromkeys((*recipes_in(module), *_handed_on(reading, module)))
    if not names:
        weigh(reading.budget, dict(module.scope))
        return _config(dict(module.scope), reading, source, "")
    takes_arguments = isinstance(module.scope.get(chosen), PythonFunction)  # or is not its file's own
    if (chosen and chosen not in names and not takes_arguments) or (not chosen and len(names) > 1):
        known_names = ", ".join(sorted(names)[:40])
        todo = f"choose one: {source}::{min(names)}"
        raise refusal(chosen or f"{len(names)} recipes", known_names, path=source, todo=todo)
    name = chosen or next(iter(names))
    function = reading.name(name, Frame({}, module))
    recipe_object = reading.follow(function, (), {}) if isinstance(function, PythonFunction) else None
    return _config({"return": recipe_object}, reading, source, name)


def recipes_in(module: Module) -> Iterator[str]:
    """Names of the functions of a file that return a configuration."""
    functions = {name: function.node for name, function in module.scope.items() if isinstance(function, PythonFunction)}
    direct = {name for name, node in functions.items() if isinstance(node, ast.FunctionDef) and _sets(node)}
    for name, node in functions.items():
        stated_values = isinstance(node, ast.FunctionDef) and node.returns is not None
        says = stated_values and "ConfigContainer" in ast.unparse(node.returns)  # type: ignore[union-attr,arg-type]
        calls = (ast.unparse(part.func) for part in ast.walk(node) if isinstance(part, ast.Call))
        is_plain = isinstance(node, ast.FunctionDef) and any(call in direct for call in calls)
        unstated_names = not stated_values and (name in direct or is_plain)
        if (says or unstated_names) and not name.startswith(("_", "test_", "mock_")) and not _needs(node):
            yield name


def _needs(node: ast.FunctionDef | ast.Lambda) -> bool:
    return len(node.args.args) + len(node.args.posonlyargs) > len(node.args.defaults)


def _handed_on(reading: Interpreter, module: Module) -> Iterator[str]:
    for name in list(module.scope):
        if name.endswith("_config") and not name.startswith("_"):
            recipe_value = reading.name(name, Frame({}, module))
            if not isinstance(recipe_value, PythonFunction) or recipe_value.module is module:
                continue
            if not _needs(recipe_value.node):
                yield name


def _sets(node: ast.FunctionDef) -> bool:
    """Whether a function sets fields of a configuration and returns it, or builds one."""
    gives = any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(node))
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and gives:
            return True
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "ConfigContainer":
            return True
    return False


def _hook(name: str, given: tuple[Any, ...], words: JsonObject) -> Any:
    """What calls mean that only the installed software could follow."""
    last = name.rpartition(".")[2]
    first = given[0] if given else None
    if last in ("from_hf_pretrained", "from_hf_config", "from_pretrained") and "." in name:
        ref = given[-1] if given else next(iter(words.values()), None)
        if isinstance(ref, Made) and ref.name.startswith(PUBLISHED):
            return ref
        return Made(name=PUBLISHED + (ref if isinstance(ref, str) else describe_value(ref)))
    if name in HANDED_ON and isinstance(first, Made):
        return first
    if name.removeprefix("def.") in ANSWERS:
        return ANSWERS[name.removeprefix("def.")]
    if last == "get_mixed_precision_config" and given:
        return first
    if last.endswith("_mixed") and not given:
        return Made(name=last)
    if last == "_pretrain_common" and not name.startswith("def."):
        return common()
    if last == "apply_flex_dispatcher_backend" and isinstance(first, Made):
        backend = given[1] if len(given) > 1 else words.get("moe_flex_dispatcher_backend")
        if isinstance(backend, str):
            first.parts |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
        return None
    if name in ("os.path.join", "os.getcwd"):
        return "."
    return MISSING


def _present(made: Made, name: str) -> Any:
    """What a published model's configuration holds before a recipe changes it."""
    if not made.name.startswith(PUBLISHED):
        return MISSING
    entry = find_name(made.name.removeprefix(PUBLISHED))
    if entry is None:
        return MISSING
    spec = MODELS[entry[0]]
    experts = max((getattr(block.ffn, "experts", 0) for block in spec.blocks), default=0)
    ahead = spec.mtp.depth if spec.mtp else None
    is_known = {"num_layers": spec.layers, "hidden_size": spec.hidden, "num_moe_experts": experts or None}
    is_known |= {"mtp_num_layers": ahead, "vocab_size": spec.vocab, "cuda_graph_impl": "none"}
    unset = ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "recompute_granularity")
    is_known |= dict.fromkeys((*unset, "expert_tensor_parallel_size", "recompute_modules"))
    is_known |= dict.fromkeys((f"{axis}_parallel_size" for axis in AXES), 1) | dict.fromkeys(OFF, False)
    return is_known.get(name, MISSING)


def common() -> Made:
    """The configuration that published recipes start from."""
    config = Made()
    for name, value in bridge.COMMON.items():
        *above, last = name.split(".")
        owner = config
        for part in above:
            owner = owner.parts.setdefault(part, Made())
        owner.parts[last] = value
    return config


def _config(scope: JsonObject, reading: Interpreter, source: str, function: str) -> RecipeFields:
    """The configuration among the names: what is returned, or the one called cfg or config."""
    for name in ("return", "cfg", "config"):
        config = scope.get(name)
        if isinstance(config, Made) and config.parts:
            _refuse_unseen(config, source)
            fields: JsonObject = {}
            unknown: dict[str, str] = {}
            notes = tuple(dict.fromkeys((*reading.notes, *_two_lengths(config))))
            _flatten(config, "", (fields, unknown), ())
            return RecipeFields(fields=fields, notes=notes, unknown=unknown, function=function)
    raise refusal("no configuration", "a recipe that returns cfg", where=source)


def _two_lengths(config: Made) -> Iterator[str]:
    """Sequences of the data that are not the model's, which Bridge refuses when it starts: what the recipe sets counts,
    else the data's."""
    model, data = config.parts.get("model"), config.parts.get("dataset")
    if not isinstance(model, Made) or not isinstance(data, Made):
        return
    model_length = model.parts.get("seq_length")
    data_length = data.parts.get("seq_length", data.parts.get("sequence_length"))
    if type(model_length) is int and type(data_length) is int and model_length != data_length:
        if "seq_length" not in model.assigned_names:
            model.parts["seq_length"] = data_length
        yield f"one of two lengths of a sequence, {model_length} of the model and {data_length} of the data"


def _refuse_unseen(made: Made, source: str) -> None:
    """An `InputError` where a recipe changes what a function makes that stands in a file which is not here."""
    module, _, name = made.name.rpartition(".")
    if module and not name[:1].isupper():
        given_text = f"a recipe that builds on {name}" + (f" of {module}" if module else "") + ", which is not here"
        todo = "read it inside its checkout or beside the installed package, where its imports can be followed"
        raise refusal(given_text[:200], "a recipe with what it imports", path=source, todo=todo)


def _flatten(made: Made, path: str, found: tuple[JsonObject, dict[str, str]], above: tuple[Made, ...]) -> None:
    """Fields by dotted name; an object inside itself is followed once."""
    fields, unknown = found
    if made.name and path:
        fields[path] = made.name
    for key, value in made.parts.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, (PythonFunction, Class, Module, Bound, dict)):
            continue
        if isinstance(value, Made):
            recomputes = any(value is ancestor for ancestor in (made, *above))
            if not recomputes and len(above) < DEEPEST and len(fields) + len(unknown) < MOST_FIELDS:
                _flatten(value, name, found, (made, *above))
        elif isinstance(value, Unknown) or (isinstance(value, (list, tuple)) and not is_known(value)):
            unknown[name] = describe_value(value)
        else:
            fields[name] = str(value) if isinstance(value, Outside) else value


def recognises(files: Files) -> bool:
    """Whether a Python file speaks of Megatron-Bridge."""
    return any(name.partition("::")[0].endswith(".py") and "megatron.bridge" in text for name, text in files.items())


def read(files: Files) -> Imported:
    """The settings of the one recipe in the files, or of the one that `file.py::name` picks."""
    for name, text in files.items():
        path, _, chosen = name.partition("::")
        if path.endswith(".py"):
            recipe_fields = read_recipe(text, chosen, path, checkout_of(files))
            provider = str(recipe_fields.fields.get("model", ""))
            if NO_DECODER.search(provider):
                raise other_work(f"a diffusion model ({provider[:60]})", where=path)
            if unknown := {field: text[:80] for field, text in recipe_fields.unknown.items() if field in bridge.NEEDED}:
                facts = {"expected": "a value that the file states", "where": path}  # and is not guessed
                raise InputError(Problem(path=field, given=text, **facts) for field, text in unknown.items())
            options = megatron_options(recipe_fields, checkout_of(files).model)
            hint = model_in(files) or ""
            fields, notes = recipe_fields.fields, recipe_fields.notes
            stated = fields.get("mixed_precision") or recipe_fields.unknown.get("mixed_precision", "bf16_mixed")
            precision = _precision_name(stated)
            if not _recipe(precision) and precision != "MixedPrecisionConfig":
                notes = (*notes, f"mixed_precision = {precision[:60]}: read as bf16_mixed")
            chips = re.search(r"_(\d{1,5})gpu_", recipe_fields.function)
            world = world_of(files) or (int(chips.group(1)) if chips else None)
            run_options = Given(options=options, source=path, world=world, notes=notes, hint=hint)
            names = {option: field for field, option in NAMES.items()}
            return _with_adapters(settings_of(run_options, bridge.ID, "megatron-bridge", names), recipe_fields)
    raise refusal(", ".join(files) or "no file", "a recipe: a Python file")


def _with_adapters(imported_run: Imported, found: RecipeFields) -> Imported:
    """Adapters, or all weights of a trained model: what a recipe for fine-tuning updates."""
    peft = found.fields.get("peft")
    imported_run = replace(
        imported_run, unread=tuple(part for part in imported_run.unread if not part.option.startswith("peft"))
    )
    if peft is not None:
        words = [str(word) for word in found.fields.get("peft.target_modules") or ALL_LINEAR]
        targets = [target for target, name in bridge.LORA.items() if any(name in word for word in words)]
        rank = found.fields.get("peft.dim", 32)
        lora = {"rank": rank if type(rank) is int else 32, "targets": targets}
        imported_run = imported_run.with_settings(workload={"task": "lora", "lora": lora})
        if "LoRA" not in str(peft) or len(targets) < len(words):
            note = f"peft = {str(peft)[:40]} of {', '.join(words)[:80]}: priced as LoRA of {targets}"
            imported_run = imported_run.with_notes(after=(note,))
    elif any(word in found.function for word in ("sft", "finetune")):
        imported_run = imported_run.with_settings(workload={"task": "finetune"})
    return imported_run


def _precision_name(precision: object) -> str:
    return str(precision).replace("-", "_").removesuffix("()").rpartition(".")[2]


def _recipe(name: str) -> str:
    """The named precision that a name is, or is a model's own kind of: nanov2_bf16_with_fp8_current_scaling_mixed."""
    return max((recipe for recipe in bridge.RECIPES if f"_{name}".endswith(f"_{recipe}")), key=len, default="")


def megatron_options(found: RecipeFields, model: str | None = None) -> JsonObject:
    """The recipe's fields as Megatron's options; `model` stands in for one that the recipe does not name."""
    fields = {field: value for field, value in found.fields.items() if not field.startswith("peft")}
    options = _precision(fields)
    options |= _model(fields, model)
    _lift(fields)
    for option, field in bridge.OPPOSITE.items():
        if fields.pop(field, None) is False:
            options[option] = True
    tied = {"untie-embeddings-and-output-weights", "disable-bias-linear"} if "model" in options else set()
    for field, value in fields.items():
        if value is None or value is False or field in SECTIONS:
            continue
        option = NAMES.get(field, field)
        options[option] = _value(option, value)
    words = found.fields.get("tokenizer.vocab_size")
    if "model" not in options and type(words) is int and words > 0:  # the provider leaves its vocabulary to it
        options.setdefault("vocab-size", words)
    elif "model" not in options and isinstance(found.fields.get("tokenizer.tokenizer_model"), str):
        options.setdefault("tokenizer-model", found.fields["tokenizer.tokenizer_model"])
    return {option: value for option, value in options.items() if option not in tied}


def _value(option: str, value: object) -> object:
    if option.endswith("-dtype"):
        return FORMATS.get(str(value), value)
    if option == "attention-backend":
        return str(value).rpartition(".")[2]
    if option == "pipeline-model-parallel-layout" and isinstance(value, (list, tuple)):
        stages = [stage if isinstance(stage, (list, tuple)) else [stage] for stage in value]
        return "|".join("".join(SIDES.get(str(part), "?") for part in stage) for stage in stages)
    if option in ("moe-layer-freq", "window-attn-skip-freq", "no-rope-freq"):
        return str(list(value) if isinstance(value, (list, tuple)) else value)
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 and option != "recompute-modules" else list(value)
    return value


def _lift(fields: JsonObject) -> None:
    # an object for overlap turns both on with the distributed optimizer, unless it says otherwise
    has_overlap = any(field.startswith("comm_overlap.") for field in fields)
    is_requested = has_overlap and fields.get("ddp.use_distributed_optimizer") is True
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        ddp_value = fields.pop(f"ddp.{name}", None)
        fields.pop(f"optimizer.{name}", None)
        if fields.get(f"comm_overlap.{name}") is None or not fields.get("ddp.use_distributed_optimizer"):
            fields[f"comm_overlap.{name}"] = True if is_requested else ddp_value
    ddp_value = fields.pop("model.overlap_moe_expert_parallel_comm", None)
    if not has_overlap:  # such an object has its own word for it
        fields["comm_overlap.overlap_moe_expert_parallel_comm"] = ddp_value
    fields.pop("optimizer.use_distributed_optimizer", None)
    fields.pop("rerun_state_machine.check_for_nan_in_loss", None)
    fields.pop("comm_overlap.batch_p2p_comm", None)
    if fields.pop("model.tp_comm_overlap", None):
        fields["comm_overlap.tp_comm_overlap"] = True
    seq = fields.pop("dataset.seq_length", None) or fields.pop("dataset.sequence_length", None)
    fields.setdefault("model.seq_length", seq)
    if not fields.pop("model.cpu_offloading", False):
        fields.pop("model.cpu_offloading_num_layers", None)
    if fields.get("model.num_query_groups") is not None:
        fields["group-query-attention"] = True
    if fields.get("model.recompute_granularity") != "selective":
        fields.pop("model.recompute_modules", None)
    if fields.get("ddp.use_megatron_fsdp") is not True:
        fields.pop("ddp.data_parallel_sharding_strategy", None)
    if fields.get("model.cuda_graph_impl") in (None, "none"):
        fields.pop("model.cuda_graph_scope", None)


def _precision(fields: JsonObject) -> JsonObject:
    """Formats: a named recipe, changed by fields; where the file names none, the common recipe's bf16."""
    name = _precision_name(fields.pop("mixed_precision", "bf16_mixed"))
    options = dict({} if name == "MixedPrecisionConfig" else bridge.RECIPES[_recipe(name) or "bf16_mixed"])
    for word in ("bf16", "fp16", "fp32"):
        if fields.pop(f"mixed_precision.{word}", None) is True:
            options = {} if word == "fp32" else {word: True}
    wide = fields.pop("mixed_precision.grad_reduce_in_fp32", name != "fp16_mixed")
    if fields.pop("ddp.grad_reduce_in_fp32", wide) is None:
        wide = True
    fields.pop("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", None)
    if options.get("bf16"):
        options["accumulate-allreduce-grads-in-fp32" if wide else "grad-reduce-in-bf16"] = True
    elif options.get("fp16") and wide:
        options["accumulate-allreduce-grads-in-fp32"] = True
    return options


def _activation(fields: JsonObject) -> JsonObject:
    """Megatron's switch for a provider's activation function, however its module was imported, and its gate. A function
    that no switch names stays among the fields, told as unread; its gate, which makes a third matrix, never does."""
    func, is_gated = fields.pop("model.activation_func", None), bool(fields.pop("model.gated_linear_unit", False))
    name = "gelu" if func is None else str(func).rpartition(".")[2]
    flags_by_activation: dict[tuple[str, bool], JsonObject] = {
        ("gelu", False): {},
        ("silu", True): {"swiglu": True},
        ("gelu", True): {"geglu": True},
        ("relu", True): {"glu-activation": "reglu"},
        **{(code, option != "squared-relu"): {option: True} for option, code in bridge.ACTIVATIONS.items()},
    }
    if (name, is_gated) not in flags_by_activation:
        fields["model.activation_func"] = func
        return {"geglu": True} if is_gated else {}
    return flags_by_activation[name, is_gated]


def _model(fields: JsonObject, chosen: str | None) -> JsonObject:
    """A published model by name with what the recipe changes of it, or the provider's own fields."""
    name = str(fields.pop("model", None) or "")
    if chosen is not None or name.startswith(PUBLISHED):
        base = load_model(chosen or name.removeprefix(PUBLISHED))
        changes = {"layers": fields.pop("model.num_layers", None), "vocab": fields.pop("model.vocab_size", None)}
        ahead = fields.pop("model.mtp_num_layers", base.mtp.depth if base.mtp else 0) or 0
        changes["mtp"] = ahead if ahead != (base.mtp.depth if base.mtp else 0) else None
        differs = {key: value for key, value in changes.items() if value is not None}
        return {"model": {"base": base.id, **differs} if differs else base.id}
    if fields.get("model.is_hybrid_model") is True and not any(fields.get(field) for field in PATTERNS):
        given_text = "shares of attention and mlp, which the provider deals itself"
        raise refusal(given_text, "a pattern of layers", path="model", todo="name the model with --model")
    options: JsonObject = {}
    options |= _activation(fields)
    if fields.pop("model.share_embeddings_and_output_weights", True) is False:
        options["untie-embeddings-and-output-weights"] = True
    if fields.get("model.position_embedding_type", "learned_absolute") == "learned_absolute":
        options["max-position-embeddings"] = fields.get("model.seq_length")
    return options
