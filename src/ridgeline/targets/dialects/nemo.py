"""NeMo 1: the YAML of megatron_gpt_pretraining.py and of NeMo's launcher; read, not written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.targets.dialects.megatron.collect import Given
from ridgeline.targets.dialects.megatron.read import settings_of
from ridgeline.targets.imports.model_names import named_by
from ridgeline.targets.imports.option_reader import chips_named, flatten, holds, model_in, only
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.tables import values
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, other_work, refusal

# keys whose value is Megatron's option of that name
SAME = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "max_position_embeddings",
    "moe_router_topk", "override_vocab_size", "qk_layernorm", "moe_ffn_hidden_size",
)  # fmt: skip
NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "low_precision_layernorm": "LayerNorm"}
NORMS |= {"rmsnorm": "RMSNorm"}
ACTIVATIONS = values("nemo", "activations")
POSITIONS = {"rope": "rope", "learned_absolute": "learned_absolute", "none": "none", "alibi": "none"}
TOKENIZERS = {"sentencepiece": "SentencePieceTokenizer", "gpt2bpetokenizer": "GPT2BPETokenizer"}
_INNER = re.compile(r"\$\{(\.{0,4})([\w.]{1,120})\}")
_PRODUCT = re.compile(r"\$\{(multiply|divide_ceil|divide_floor):\s*(-?\d{1,15})\s*,\s*(-?\d{1,15})\s*\}")
ID = "nemo"
# keys of `model` -> options of Megatron's command line that take the same value
NAMES = table_words("nemo", "names")
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
OPTIMIZERS = {"sgd": "sgd"}
FSDP = {"full": "optim_grads_params", "hybrid": "optim_grads_params", "grad": "optim_grads"}
OTHERS = table_words("nemo", "others")
# words of a run's name that say what it does beside training
NAMED = table_words("nemo", "named")
# models whose layers no key of the file spells, by the words that name them
UNSPELLED = ("griffin", "recurrentgemma", "hyena", "mamba", "gemma2", "gemma-2-")
LORA = {"attention_qkv": "qkv", "attention_dense": "out", "mlp_fc1": "up", "mlp_fc2": "down"}
ALL = {"attention": ("qkv", "out"), "mlp": ("up", "gate", "down"), "all": ("qkv", "out", "up", "gate", "down")}
WORDS = frozenset(table_names("nemo", "words"))


def model_words(model: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Options of Megatron's command line that the dimensions of a NeMo model mean.

    >>> dict(model_words({"num_layers": 2, "activation": "swiglu", "bias": False, "num_query_groups": 2}))["swiglu"]
    True
    """
    for key in SAME:
        if model.get(key) is not None:
            yield key.replace("_", "-").replace("override-vocab-size", "padded-vocab-size"), model[key]
    groups = model.get("num_query_groups", model.get("num_kv_heads"))
    if groups is not None and groups != model.get("num_attention_heads"):
        yield "group-query-attention", True
        yield "num-query-groups", groups
    yield "normalization", NORMS.get(str(model.get("normalization", "layernorm")).lower(), model.get("normalization"))
    yield from ACTIVATIONS.get(str(model.get("activation", "gelu")).lower(), {}).items()
    if model.get("bias", model.get("has_bias", True)) is False:
        yield "disable-bias-linear", True
    if model.get("share_embeddings_and_output_weights", True) is False:
        yield "untie-embeddings-and-output-weights", True
    kind = str(model.get("position_embedding_type", "learned_absolute"))
    yield "position-embedding-type", POSITIONS.get(kind, kind)
    yield from _experts(model)
    window = model.get("window_size") or model.get("sliding_window_size")
    if isinstance(window, (list, int)) and not isinstance(window, bool):
        yield "window-size", window if isinstance(window, list) else f"{window},0"


def _experts(model: JsonMapping) -> Iterator[tuple[str, Any]]:
    inner = model.get("moe")
    count = model.get("num_moe_experts") or (inner.get("num_experts") if isinstance(inner, Mapping) else None)
    if not count:
        return
    yield "num-experts", count
    if isinstance(inner, Mapping):
        yield "moe-router-topk", inner.get("top_k", 1)
        if inner.get("frequency", 1) not in (1, None):
            yield "moe-layer-freq", inner["frequency"]


def tokenizer_words(tokenizer: object) -> Iterator[tuple[str, Any]]:
    """What a table of the tokenizer says of the vocabulary."""
    table = tokenizer if isinstance(tokenizer, Mapping) else {}
    library, kind = str(table.get("library", "")).lower(), str(table.get("type", ""))
    sizes_found = re.search(r"(\d{2,3})k\b", str(table.get("model") or "")[:200].rpartition("/")[2].lower())
    if sizes_found is not None:  # a tokenizer that is named after how many words it has
        yield "vocab-size", int(sizes_found.group(1)) * 1000
    if library == "megatron" or kind.lower() in TOKENIZERS:
        yield "tokenizer-type", TOKENIZERS.get(kind.lower(), kind)
    elif library == "huggingface" or "/" in kind:
        yield "tokenizer-model", kind
    elif library in TOKENIZERS:
        yield "tokenizer-type", TOKENIZERS[library]


def resolve_references(options: JsonMapping) -> JsonObject:
    """Options with references to others filled in, relative ones (`${.seq}`) and products (`${multiply:2,4}`) too.

    >>> resolve_references({"m.a": 8, "m.b": "${.a}", "m.c": "${multiply:4, ${m.a}}", "d": "${divide_floor:${m.c},2}"})
    {'m.a': 8, 'm.b': 8, 'm.c': 32, 'd': 16}
    """
    resolved_options = dict(options)
    for _ in range(6):  # references to references
        for name, value in resolved_options.items():
            if isinstance(value, str) and "${" in value:
                resolved_options[name] = _evaluate_product(value, name, resolved_options)
    return resolved_options


def _evaluate_product(text: str, name: str, known: JsonMapping) -> Any:
    """A value with its innermost references replaced by what they refer to."""

    def meant(found: re.Match[str]) -> str:
        dots, key = found.groups()
        above = name.split(".")[: -len(dots)] if dots else []
        value = known.get(".".join((*above, key)))
        plain = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        return str(value) if plain and len(str(value)) <= 200 else found.group(0)

    done = _INNER.sub(meant, text)
    product = _PRODUCT.fullmatch(done)
    if product is not None:
        kind, left_factor, right_factor = product.group(1), int(product.group(2)), int(product.group(3))
        if kind == "multiply":
            return left_factor * right_factor
        if right_factor == 0:
            return done
        return left_factor // right_factor if kind == "divide_floor" else -(-left_factor // right_factor)
    return int(done) if re.fullmatch(r"-?\d{1,15}", done) else done


def recognises(files: Files) -> bool:
    """A YAML file of a trainer and a model with a tensor degree and a microbatch."""
    return holds(files, _is_ours, ".yaml", ".yml")


def _is_ours(data: JsonMapping) -> bool:
    tables = isinstance(data.get("model"), Mapping) and isinstance(data.get("trainer"), Mapping)
    return tables and {"micro_batch_size", "tensor_model_parallel_size"} <= set(data["model"])


def read(files: Files) -> Imported:
    """What the trainer's YAML says."""
    table = only(files, _is_ours, "one YAML file with a trainer and a model", ".yaml", ".yml")
    stated_options = resolve_references({key.removeprefix("training."): value for key, value in flatten(table.data)})
    for key, value in stated_options.items():  # a launcher's `${training.model.x}` is `${model.x}` of the run
        stated_options[key] = value.replace("${training.", "${") if isinstance(value, str) else value
    stated_options = resolve_references(stated_options)
    model = {key: stated_options.get(f"model.{key}", value) for key, value in table.data["model"].items()}
    _refuse_other_work(model, stated_options, table.source)
    options = dict(_options(model, stated_options))
    model_name = checkout_of(files).model or model_in(files) or _checkpoint(model, stated_options)
    if model_name is not None:
        options["model"] = model_name
    else:
        _refuse_unknown(model, stated_options, table.source)
    options |= {key: value for key, value in stated_options.items() if _is_left(key, value)}
    world = _world(stated_options, table.source)
    folder = checkout_of(files).folder
    path = f"{folder.name if folder else ''}/{table.source}"
    run_options = Given(options=options, source=table.source, world=world, path=path)
    return _with_adapters(settings_of(run_options, ID, ID), model)


def _refuse_other_work(model: JsonMapping, said: JsonMapping, source: str) -> None:
    """An `InputError` for files that do not train a decoder: by the keys of their model, or by the run's name."""
    work_kinds = [means for key, means in OTHERS.items() if model.get(key) not in (None, False)]
    names = [str(said.get(key) or "").lower()[:200] for key in ("run.name", "name", "run.model_train_name")]
    work_kinds += [means for sign, means in NAMED.items() if any(re.search(sign, name) for name in names)]
    if work_kinds:
        raise other_work(work_kinds[0], where=source)


def _refuse_unknown(model: JsonMapping, said: JsonMapping, source: str) -> None:
    """An `InputError` where the model is not spelled: neither dimensions nor a checkpoint of a known name."""
    words = f"{said.get('run.name')} {said.get('model.tokenizer.type')} {said.get('name')} {source}".lower()
    unspelled_word = next((word for word in UNSPELLED if word in words), None)
    if model.get("num_layers") is not None and unspelled_word is None:
        return
    trained_model = str(said.get("run.model_train_name") or model.get("restore_from_path") or "nothing")[:80]
    given_text = f"layers of {unspelled_word}, which no key spells"
    if unspelled_word is None:
        given_text = f"no dimensions, and {trained_model} as its checkpoint"
    expected_text, todo = "dimensions, or the name of a known model", "name the model with --model"
    raise refusal(given_text, expected_text, path="model", todo=todo, where=source)


def _checkpoint(model: JsonMapping, said: JsonMapping) -> str | None:
    """The catalog's model that a checkpoint, or the run that trained it, is named after, where the file spells none."""
    if model.get("num_layers") is not None:
        return None
    paths = [model.get(key) for key in ("restore_from_path", "pretrained_checkpoint", "language_model_path")]
    for path in (*paths, said.get("run.model_train_name")):
        entry = named_by(str(path or "").removesuffix(".nemo"))
        if entry is not None:
            return entry[0]
    return None


def _options(model: JsonMapping, said: JsonMapping) -> Iterator[tuple[str, Any]]:
    yield from model_words(model)
    yield from tokenizer_words(model.get("tokenizer"))
    for key, option in NAMES.items():
        value = said.get(f"model.{key}")
        if value is not None and value is not False:
            yield option, value
    lengths = (said.get(f"model.data.{key}") for key in ("seq_length", "train_ds.max_seq_length"))
    length = next((length for length in lengths if type(length) is int), None)
    if "encoder_seq_length" not in model and length is not None:
        yield "seq-length", length
    if said.get("model.overlap_p2p_comm", True) is False:
        yield "no-overlap-p2p-communication", True
    name = str(said.get("trainer.precision", said.get("model.precision", "32"))).removesuffix("-mixed")
    if name in ("bf16", "16", "fp16"):
        yield ("bf16" if name == "bf16" else "fp16"), True
    if name == "bf16":
        narrow = str(said.get("model.optim.grad_sync_dtype", "")) in ("bf16", "torch.bfloat16")
        yield ("grad-reduce-in-bf16" if narrow else "accumulate-allreduce-grads-in-fp32"), True
    if said.get("model.fp8") is True:
        yield "fp8-format", "e4m3" if said.get("model.fp8_e4m3") is True else "hybrid"
        if said.get("model.fp8_params") is True:
            yield "fp8-param-gather", True
    yield from _sharding(said)


def _sharding(said: JsonMapping) -> Iterator[tuple[str, Any]]:
    """The distributed optimizer is zero1; FSDP by its strategy."""
    name = str(said.get("model.optim.name", "fused_adam"))
    yield "optimizer", OPTIMIZERS.get(name, "adam")
    if said.get("model.fsdp") is True:
        yield "use-distributed-optimizer", True
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", FSDP.get(str(said.get("model.fsdp_sharding_strategy", "full")), "")
    elif name in SHARDED:
        yield "use-distributed-optimizer", True


def _is_left(key: str, value: Any) -> bool:
    """Whether a key of the model is told of apart: what was not translated, and says something."""
    section, _, name = key.partition(".")
    known_names = name in NAMES or name.split(".")[0] in ("data", "tokenizer", "optim", "nsys_profile", "precision")
    return section == "model" and not known_names and value not in (None, False) and name not in WORDS


def _world(said: JsonMapping, source: str) -> int | None:
    """Ranks that the trainer states, where the mesh fits on them; else those that the file is named after."""
    nodes, chips_per_node = said.get("trainer.num_nodes"), said.get("trainer.devices")
    axes = ("tensor_model", "pipeline_model", "context")
    degrees = [said.get(f"model.{axis}_parallel_size", 1) for axis in axes]
    least = prod(degree for degree in degrees if type(degree) is int)
    sizes = [size for size in (nodes, chips_per_node) if type(size) is int and size > 0]
    if len(sizes) == 2 and prod(sizes) >= max(1, least):
        return prod(sizes)
    chips_in_name = chips_named(source)
    return chips_in_name if chips_in_name is not None and chips_in_name >= max(1, least) else None


def _with_adapters(found: Imported, model: JsonMapping) -> Imported:
    """Adapters, or all weights of a trained model: what a file for fine-tuning updates."""
    peft = model.get("peft")
    scheme = str(peft.get("peft_scheme") or "") if isinstance(peft, Mapping) else ""
    if scheme == "lora" and isinstance(peft, Mapping):
        tuning = peft.get("lora_tuning")
        tuning_table: JsonMapping = tuning if isinstance(tuning, Mapping) else {}
        words = tuning_table.get("target_modules")
        names = [str(word) for word in words] if isinstance(words, list) else ["attention_qkv"]
        targets = [part for word in names for part in ALL.get(word, (LORA[word],) if word in LORA else ())]
        rank = tuning_table.get("adapter_dim", 32)
        rank = rank if type(rank) is int and rank > 0 else 32
        lora = {"rank": rank, "targets": list(dict.fromkeys(targets)) or ["qkv"]}
        found = found.with_settings(workload={"task": "lora", "lora": lora})
    elif model.get("restore_from_path") is not None:
        found = found.with_settings(workload={"task": "finetune"})
    if scheme not in ("", "none", "lora", "None"):
        found = found.with_notes(after=(f"peft_scheme = {scheme[:40]}: read as training of all weights",))
    return found
