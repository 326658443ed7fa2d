"""Turn a Megatron-Bridge recipe into Megatron's words, and those into a scenario's settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import model as load_model
from ridgeline.targets.megatron.collect import Given, world_of
from ridgeline.targets.megatron.read import settings_of
from ridgeline.targets.megatron_bridge.names import ACTIVATIONS, DTYPES, FIELDS, ID, LORA, NEEDED, OPPOSITE, RECIPES
from ridgeline.targets.megatron_bridge.read_recipe import PUBLISHED, RecipeFields, read_recipe, recipes_in
from ridgeline.targets.option_reader import model_in
from ridgeline.targets.python_eval import Interpreter
from ridgeline.targets.run_files import Around, around
from ridgeline.targets.target import Files, Imported

NAMES = {field: option for option, field in FIELDS.items()}
FORMATS = {code: word for word, code in DTYPES.items()}
SIDES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
SECTIONS = frozenset(
    (
        "train",
        "ddp",
        "optimizer",
        "scheduler",
        "dataset",
        "logger",
        "tokenizer",
        "checkpoint",
        "rng",
        "dist",
        "comm_overlap",
        "validation",
        "rerun_state_machine",
    )
)
PATTERNS = ("model.hybrid_layer_pattern", "model.hybrid_override_pattern")
NO_DECODER = re.compile(r"\b(Wan|Flux|DiT|Dit|Diffusion|Mimo|MIMO)\w*(Provider|Config)\b")
ALL_LINEAR = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def recognises(files: Files) -> bool:
    """Whether a Python file speaks of Megatron-Bridge."""
    return any(name.partition("::")[0].endswith(".py") and "megatron.bridge" in text for name, text in files.items())


def functions(files: Files) -> list[str]:
    """The recipes of a Python file."""
    name, text = next((name.partition("::")[0], text) for name, text in files.items() if ".py" in name)
    return list(recipes_in(Interpreter(around=Around()).load(text, name)))


def read(files: Files) -> Imported:
    """The settings of the one recipe in the files, or of the one that `file.py::name` picks."""
    for name, text in files.items():
        path, _, chosen = name.partition("::")
        if path.endswith(".py"):
            found = read_recipe(text, chosen, path, around(files))
            _refuse_other_work(found, path)
            _refuse_unknown(found, path)
            options = translated(found, around(files).model)
            hint = model_in(files) or ""
            notes = (*found.notes, *_unsaid(found))
            world = world_of(files) or _chips(found.function)
            given = Given(options=options, source=path, world=world, notes=notes, hint=hint)
            names = {option: field for field, option in NAMES.items()}
            return _tuned(settings_of(given, ID, "megatron-bridge", names), found)
    raise InputError(Problem(path="", given=", ".join(files) or "no file", expected="a recipe: a Python file"))


def _chips(function: str) -> int | None:
    """Chips that a recipe's name says it is for."""
    found = re.search(r"_(\d{1,5})gpu_", function)
    return int(found.group(1)) if found else None


def _refuse_other_work(found: RecipeFields, path: str) -> None:
    """An `InputError` for recipes of models that are no decoders of text."""
    provider = str(found.fields.get("model", ""))
    kind = NO_DECODER.search(provider)
    if kind is not None:
        given = f"a diffusion model ({provider[:60]})"
        raise InputError(Problem(path="", given=given, expected="training of a decoder", where=path))


def _refuse_unknown(found: RecipeFields, path: str) -> None:
    """A field that decides the step and that only running the recipe would tell is not guessed."""
    wrong = [
        Problem(path=field, given=text[:80], expected="a value that the file states", where=path)
        for field, text in found.unknown.items()
        if field in NEEDED
    ]
    if wrong:
        raise InputError(wrong)


def _tuned(imported: Imported, found: RecipeFields) -> Imported:
    """Adapters, or all weights of a trained model: what a recipe for fine-tuning updates."""
    peft = found.fields.get("peft")
    workload: dict[str, Any] = dict(imported.settings["workload"])
    notes = imported.assumptions
    if peft is not None:
        words = [str(word) for word in found.fields.get("peft.target_modules") or ALL_LINEAR]
        targets = [target for target, name in LORA.items() if any(name in word for word in words)]
        rank = found.fields.get("peft.dim", 32)
        workload |= {"task": "lora", "lora": {"rank": rank if type(rank) is int else 32, "targets": targets}}
        if "LoRA" not in str(peft) or len(targets) < len(words):
            notes = (*notes, f"peft = {str(peft)[:40]} of {', '.join(words)[:80]}: priced as LoRA of {targets}")
    elif any(word in found.function for word in ("sft", "finetune")):
        workload["task"] = "finetune"
    unread = tuple(part for part in imported.unread if not part.option.startswith("peft"))
    return replace(imported, settings={**imported.settings, "workload": workload}, assumptions=notes, unread=unread)


def _unsaid(found: RecipeFields) -> tuple[str, ...]:
    """A precision that the file does not spell."""
    name = _named(found.fields.get("mixed_precision") or found.unknown.get("mixed_precision", "bf16_mixed"))
    known = _recipe(name) or name == "MixedPrecisionConfig"
    return () if known else (f"mixed_precision = {name[:60]}: read as bf16_mixed",)


def _named(precision: Any) -> str:
    return str(precision).replace("-", "_").removesuffix("()").rpartition(".")[2]


def _recipe(name: str) -> str:
    """The named precision that a name is, or is a model's own kind of: nanov2_bf16_with_fp8_current_scaling_mixed."""
    return max((known for known in RECIPES if name == known or name.endswith(f"_{known}")), key=len, default="")


def translated(found: RecipeFields, model: str | None = None) -> dict[str, Any]:
    """The recipe's fields as Megatron's options; `model` stands in for one that the recipe does not name."""
    fields = {field: value for field, value in found.fields.items() if not field.startswith("peft")}
    options = _precision(fields)
    options |= _model(fields, model)
    _lift(fields)
    for option, field in OPPOSITE.items():
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


def _value(option: str, value: Any) -> Any:
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


def _lift(fields: dict[str, Any]) -> None:
    """Fields that say the same thing in another place."""
    # an object for overlap turns both on with the distributed optimizer, unless it says otherwise
    given = any(field.startswith("comm_overlap.") for field in fields)
    asked = given and fields.get("ddp.use_distributed_optimizer") is True
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        own = fields.pop(f"ddp.{name}", None)
        fields.pop(f"optimizer.{name}", None)
        if fields.get(f"comm_overlap.{name}") is None or not fields.get("ddp.use_distributed_optimizer"):
            fields[f"comm_overlap.{name}"] = True if asked else own
    own = fields.pop("model.overlap_moe_expert_parallel_comm", None)
    if not given:  # such an object has its own word for it
        fields["comm_overlap.overlap_moe_expert_parallel_comm"] = own
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


def _precision(fields: dict[str, Any]) -> dict[str, Any]:
    """Formats: a named recipe, changed by fields; where the file names none, the common recipe's bf16."""
    name = _named(fields.pop("mixed_precision", "bf16_mixed"))
    options = dict({} if name == "MixedPrecisionConfig" else RECIPES[_recipe(name) or "bf16_mixed"])
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


def _activation(fields: dict[str, Any]) -> dict[str, Any]:
    """Megatron's switch for a provider's activation function, however its module was imported, and its gate. A function
    that no switch names stays among the fields, told as unread; its gate, which makes a third matrix, never does."""
    func, gated = fields.pop("model.activation_func", None), bool(fields.pop("model.gated_linear_unit", False))
    name = "gelu" if func is None else str(func).rpartition(".")[2]
    known: dict[tuple[str, bool], dict[str, Any]] = {
        ("gelu", False): {},
        ("silu", True): {"swiglu": True},
        ("gelu", True): {"geglu": True},
        ("relu", True): {"glu-activation": "reglu"},
        **{(code, option != "squared-relu"): {option: True} for option, code in ACTIVATIONS.items()},
    }
    if (name, gated) not in known:
        fields["model.activation_func"] = func
        return {"geglu": True} if gated else {}
    return known[name, gated]


def _model(fields: dict[str, Any], chosen: str | None) -> dict[str, Any]:
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
        given, expected = "shares of attention and mlp, which the provider deals itself", "a pattern of layers"
        raise InputError(Problem(path="model", given=given, expected=expected, todo="name the model with --model"))
    options: dict[str, Any] = {}
    options |= _activation(fields)
    if fields.pop("model.share_embeddings_and_output_weights", True) is False:
        options["untie-embeddings-and-output-weights"] = True
    if fields.get("model.position_embedding_type", "learned_absolute") == "learned_absolute":
        options["max-position-embeddings"] = fields.get("model.seq_length")
    return options
