"""Turn options of MindSpeed-LLM whose file of layers builds others than Megatron's words spell into that model.

LongCat: every layer holds two attentions, two dense MLPs and experts beside the first MLP, which is written as two
layers. Experts that do nothing (zero experts) are further choices of the router.
DeepSeek-V4: compressed attention by `--compress-ratios` (0 the window alone, 4 pooled and picked by an indexer, 128
pooled), hyper-connections around both parts of a layer.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.models.load import model as load_model
from ridgeline.targets.dialects.megatron.collect import collect, speaking
from ridgeline.targets.dialects.megatron.names import MODULES, layout_of, pattern_of
from ridgeline.targets.dialects.megatron.read import settings_of, with_model
from ridgeline.targets.dialects.mindspeed.names import ALGORITHMS, ID, PARTS, RENAMED
from ridgeline.targets.imports.model_names import known_as
from ridgeline.targets.tables import word_lists
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, refusal

LONGCAT = ("moe-with-double-attention", "enable-mla-scale-q-lora", "enable-mla-scale-kv-lora", "num-zero-experts")
DEEPSEEK4 = table_words("mindspeed", "deepseek4")
NOTED = (
    *("n-hash-layers", "enable-mhc", "hc-mult", "kv-compress", "o-groups", "o-lora-rank", "sliding-window-size"),
    *("compress-ratios", "enable-dsa-indexer", "index-n-heads", "index-head-dim", "index-topk", "spec", "mtp-spec"),
)
RATIOS = (0, 4, 128)


def of_longcat(said: JsonObject) -> str | JsonMapping:
    """The model of a LongCat run; what was read is taken out of the options."""
    zero, picks = _number(said, "num-zero-experts", 0), _number(said, "moe-router-topk")
    experts, width = _number(said, "num-experts"), _number(said, "ffn-hidden-size")
    attention = {"kind": "mla", "heads": _number(said, "num-attention-heads")}
    attention |= {"q_rank": _number(said, "q-lora-rank", 0), "kv_rank": _number(said, "kv-lora-rank", 512)}
    attention |= {"nope_dim": _stated_size(said, "qk-nope-head-dim", "qk-head-dim", 128)}
    attention |= {"rope_dim": _stated_size(said, "qk-rope-head-dim", "qk-pos-emb-head-dim", 64)}
    attention |= {"v_dim": _number(said, "v-head-dim", 128)}
    moe: JsonObject = {"experts": experts, "topk": max(1, round(picks * experts / (experts + zero)))}
    moe |= {"hidden": _number(said, "moe-ffn-hidden-size"), "shared_hidden": width}
    table: JsonObject = {
        "hidden": _number(said, "hidden-size"),
        "layers": 2 * _number(said, "num-layers"),
        "vocab": _stated_size(said, "padded-vocab-size", "vocab-size", 131072),
        "context": _stated_size(said, "max-position-embeddings", "seq-length", 131072),
        "pattern": ["shortcut", "dense"],
        "attention": attention,
        "mlp": {"hidden": width},
        "moe": moe | ({"idle": zero} if zero else {}),
        "block": {"shortcut": {}, "dense": {"moe": False}},
    }
    for name in (*LONGCAT, "spec"):
        said.pop(name, None)
    return known_as(table, prefer="longcat-flash")


def of_deepseek4(said: JsonObject) -> str | JsonMapping:
    """The model of a DeepSeek-V4 run; what was read is taken out of the options."""
    layers, ratios_given = _number(said, "num-layers"), said.get("compress-ratios")
    listed_values = ratios_given if isinstance(ratios_given, list) else [ratios_given]
    ratios = [_number({"ratio": ratio}, "ratio") for ratio in listed_values if ratio not in RATIOS] or listed_values
    if len(listed_values) < layers or not set(ratios) <= set(RATIOS):
        raise refusal(str(ratios_given)[:60], f"{layers} numbers, each 0, 4 or 128", path="--compress-ratios")
    config: JsonObject = {key: _number(said, name) for key, name in DEEPSEEK4.items()}
    config |= {"model_type": "deepseek_v4", "num_key_value_heads": 1, "n_shared_experts": 1}
    config |= {"compress_ratios": listed_values, "num_nextn_predict_layers": _number(said, "mtp-num-layers", 0)}
    config |= {"vocab_size": _stated_size(said, "padded-vocab-size", "vocab-size", 129280)}
    config |= {"max_position_embeddings": _stated_size(said, "max-position-embeddings", "seq-length", 163840)}
    config |= {"tie_word_embeddings": not said.get("untie-embeddings-and-output-weights", False)}
    load_model(config)  # what is wrong is said in the words of the configuration
    for name in NOTED:
        said.pop(name, None)
    return known_as(config, prefer="deepseek-v4-flash")


def _stated_size(said: JsonMapping, name: str, other: str, default: int) -> int:
    """A number under MindSpeed's own name or under Megatron's."""
    return _number(said, name if name in said else other, default)


def _number(said: JsonMapping, name: str, default: int | None = None) -> int:
    value = said.get(name, default)
    if type(value) is not int or not 0 <= value <= 10_000_000:
        raise refusal("nothing" if value is None else repr(value)[:60], "a whole number of the model", path=f"--{name}")
    return value


SIGNS = re.compile(
    r"mindspeed|MindSpeed|modellink|ModelLink|NPUS_PER_NODE|Ascend/ascend-toolkit|HCCL_CONNECT_TIMEOUT|ASCEND_"
    r"|multi-head-latent-attention|context-parallel-algo|moe-tp-extend-ep|first-k-dense-replace|use-ascend-coc"
    r"|--use-fused-(rmsnorm|swiglu)(?! +[\w$\"])"  # without a value, which other dialects give it
)
OWN = {name.lstrip("-"): megatron_name.lstrip("-") for megatron_name, name in RENAMED.items() if name.startswith("--")}
# files of layers whose layers are those that the options spell
PLAIN_SPECS = ("qwen3", "deepseek", "bailing", "phi35_moe", "plm", "minimax", "hunyuan", "gemma2", "grok")
GATED_SPECS = ("qwen3_next", "qwen2_moe")  # whose shared expert has a gate
ADAPTED = word_lists("mindspeed", "adapted")
INDEXER = ("n-heads", "head-dim", "topk")
EXCHANGES = {algorithm: kind for kind, algorithm in ALGORITHMS.items()}


def recognises(files: Files) -> bool:
    """Whether a script passes Megatron's arguments and one that only MindSpeed has."""
    return any(SIGNS.search(text) for text in speaking(files))


def read(files: Files) -> Imported:
    """The settings of a script."""
    run_options = with_model(collect(files), files)
    stated_options = dict(run_options.options)
    dual = stated_options.pop("schedules-method", None) == "dualpipev"
    stages = _per_rank(stated_options)
    recomputes = _recompute_options(stated_options)
    _layers(stated_options, dual)
    task = _task(stated_options)
    _spec(stated_options)
    _experts(stated_options)
    _memory(stated_options)
    _switches(stated_options)
    _linear(stated_options)
    names = {megatron_name: own_name for own_name, megatron_name in OWN.items()}
    options_translated = {OWN.get(name, name): value for name, value in stated_options.items()}
    imported_run = settings_of(replace(run_options, options=options_translated), ID, "mindspeed", names)
    if imported_run.settings["workload"]["kind"] != "train":
        return imported_run
    if task:
        workload = {**imported_run.settings["workload"], **task}
        imported_run = replace(imported_run, settings={**imported_run.settings, "workload": workload})
    if (
        stages
        and imported_run.settings["plan"]["recompute"] != "none"
        and not (recomputes and recomputes["kind"] != "full")
    ):
        recomputes = {**(recomputes or {"kind": "full"}), "layers": stages}
    if recomputes:
        imported_run = _with_plan(imported_run, recompute=recomputes)
    return _with_plan(imported_run, schedule="dualpipe-v") if dual else imported_run


def _task(said: JsonObject) -> JsonObject:
    """Fine-tuning, adapters, and documents of one length inside a sequence."""
    task_table: JsonObject = {}
    if str(said.get("stage", "")) in ("sft", "pt", "lora"):
        task_table |= {"task": "finetune"} if said.pop("stage") != "pt" else {}
    rank = said.get("lora-r")
    if type(rank) is int and 0 < rank < 10_000:
        module_names = said.get("lora-target-modules", ["linear_qkv", "linear_proj"])
        words = [str(word) for word in (module_names if isinstance(module_names, list) else [module_names])]
        targets = dict.fromkeys(part for word in words for part in ADAPTED.get(word, ()))
        for name in ("lora-r", "lora-alpha", "lora-fusion", "lora-load", "lora-ckpt-filter"):
            said.pop(name, None)
        if all(word in ADAPTED for word in words):
            said.pop("lora-target-modules", None)
        task_table |= {"task": "lora", "lora": {"rank": rank, "targets": list(targets)}}
    share_each = said.get("fix-sub-seq-length")
    if said.get("reset-attention-mask") and type(share_each) is int and share_each > 0:
        said.pop("fix-sub-seq-length")
        task_table["document"] = share_each
    return task_table


def _spec(said: JsonObject) -> None:
    """The file of layers that a run names: those that the options spell, or layers known by that file."""
    spec_module = said.get("spec")
    file = str(spec_module[0] if isinstance(spec_module, list) and spec_module else spec_module or "")
    name = file.rpartition(".")[2].removesuffix("_spec")
    if name in (*PLAIN_SPECS, *GATED_SPECS):
        said.pop("spec")
    if name in GATED_SPECS:
        said["moe-shared-expert-gate"] = True
        said.pop("shared-expert-gate", None)
    if name == "qwen3_next":
        said["attention-output-gate"] = True
    if name == "mamba":
        said.pop("spec")
        said["hybrid-layer-pattern"] = "M" * min(said["num-layers"], 1000)
        expand = _read_number(said, "mamba-expand", 2)
        size = max(1, _read_number(said, "mamba-head-dim", 64))
        said.setdefault("mamba-num-heads", max(1, expand * _read_number(said, "hidden-size", 1) // size))
        for part in ("mamba-expand", "mamba-d-conv"):
            said.pop(part, None)
    if _is_longcat(said) and "model" not in said:
        said["model"] = of_longcat(said)
    if ("n-hash-layers" in said or "enable-mhc" in said) and "model" not in said:
        said["model"] = of_deepseek4(said)
    span = said.pop("interleave-sliding-window", None)
    if span is not None:  # every second layer sees all
        said |= {"window-size": span, "window-attn-skip-freq": 2}
    said.pop("input-embeds-norm", None)  # scales the embedding


def _is_longcat(said: JsonObject) -> bool:
    """Whether each layer is built with two attentions."""
    return "longcat_spec" in str(said.get("spec", "")) or bool(said.get("moe-with-double-attention"))


def _with_plan(imported: Imported, **changes: Any) -> Imported:
    """Decisions in place of what Megatron's words read as, which has none for them."""
    plan: JsonObject = {**imported.settings["plan"], **changes}
    return replace(imported, settings={**imported.settings, "plan": plan})


def _recompute_options(said: JsonObject) -> JsonObject:
    """Activation functions computed again in some layers, or in those beyond the whole ones; else nothing."""
    if not said.get("recompute-activation-function"):
        return {}
    some = said.pop("recompute-activation-function-num-layers", None)
    if said.get("recompute-granularity") == "full" and said.get("recompute-method") == "block":
        said.pop("recompute-activation-function")
        layer_count = _read_number(said, "recompute-num-layers", 0)
        return {"kind": "full", "layers": layer_count, "rest": "selective", "parts": ["activation"]}
    if type(some) is int and "recompute-granularity" not in said and 0 <= some <= 100_000:
        return {"kind": "selective", "layers": some, "parts": ["activation"]}
    return {}


def _per_rank(said: JsonObject) -> list[int]:
    """Recomputed layers of each virtual stage where a number for each pipeline rank is given; else nothing."""
    layers_each, layers = said.get("num-layers-per-virtual-pipeline-stage"), said.get("num-layers")
    values_requested = said.pop("enable-recompute-layers-per-pp-rank", False)
    if (
        not values_requested
        or type(layers_each) is not int
        or type(layers) is not int
        or layers_each < 1
        or layers > 10_000
    ):
        return []
    pp = max(1, _read_number(said, "pipeline-model-parallel-size", 1))
    count = _read_number(said, "recompute-num-layers", 0)
    # the first stages of a rank are filled first
    return [max(0, min(layers_each, count - stage // pp * layers_each)) for stage in range(layers // layers_each)]


def _read_number(said: JsonObject, name: str, default: int) -> int:
    value = said.get(name, default)
    if type(value) is not int or value < 0 or value > 100_000:
        raise refusal(repr(value)[:60], "a whole number", path=f"--{name}")
    return value


def _layers(said: JsonObject, dual: bool) -> None:
    """Real layers, and how stages hold them: by a list, or with empty layers that fill short stages."""
    total, pp = _read_number(said, "num-layers", 1), max(1, _read_number(said, "pipeline-model-parallel-size", 1))
    empty = _numbers(said.pop("noop-layers", ""))
    twice = 2 if _is_longcat(said) else 1  # such a layer is written as two
    layers_each = said.pop("num-layers-per-virtual-pipeline-stage", None)
    stages = 2 * pp if dual else total // layers_each if type(layers_each) is int and layers_each > 0 else pp
    counts = _numbers(said.pop("num-layer-list", ""))
    if not counts and stages > 0 and (empty or stages > pp):
        slots = total // stages
        counts = [
            slots - sum(stage * slots <= number < (stage + 1) * slots for number in empty) for stage in range(stages)
        ]
    said["num-layers"] = total - len(empty)
    if counts and pp > 1:
        ahead = _read_number(said, "mtp-num-layers", 0)
        said["pipeline-model-parallel-layout"] = layout_of(tuple(twice * count for count in counts), ahead)
    if twice > 1 and type(said.get("recompute-num-layers")) is int:
        said["recompute-num-layers"] *= twice


def _numbers(value: Any) -> list[int]:
    """Whole numbers separated by commas."""
    words = [word for word in str(value).replace(" ", "").split(",") if word]
    if not all(word.isdigit() and len(word) < 7 for word in words) or len(words) > 10_000:
        raise refusal(repr(value)[:60], "numbers joined by commas", path="--noop-layers")
    return [int(word) for word in words]


def _experts(said: JsonObject) -> None:
    width = said.pop("moe-intermediate-size", None)
    if "num-experts" not in said:
        return
    if width is not None:
        said.setdefault("moe-ffn-hidden-size", width)
    shared = said.pop("n-shared-experts", None)
    if type(shared) is int and shared:
        size = _read_number(said, "moe-ffn-hidden-size", _read_number(said, "ffn-hidden-size", 0))
        said["moe-shared-expert-intermediate-size"] = shared * size
    layers = said["num-layers"]
    if "first-k-dense-replace" in said or said.get("moe-layer-freq") == -1:
        dense = said.pop("first-k-dense-replace", -1)  # -1: no layer is dense
        dense = 0 if dense == -1 else _read_number({"first-k-dense-replace": dense}, "first-k-dense-replace", 0)
        interval = 1 if said.get("moe-layer-freq") == -1 else max(1, _read_number(said, "moe-layer-freq", 1))
        flags = tuple(layer >= dense and layer % interval == 0 for layer in range(layers))
        said["moe-layer-freq"] = pattern_of(flags)
    tp = max(1, _read_number(said, "tensor-model-parallel-size", 1))
    if said.pop("moe-tp-extend-ep", False):
        said["expert-model-parallel-size"] = tp * max(1, _read_number(said, "expert-model-parallel-size", 1))
        said["expert-tensor-parallel-size"] = 1
    if said.get("moe-token-dispatcher-type") == "alltoall_seq":
        said["moe-token-dispatcher-type"] = "alltoall"


def _linear(said: JsonObject) -> None:
    """Linear attention in all layers but every N-th; sparse attention that an indexer chooses keys for."""
    interval = said.pop("full-attention-interval", None)
    if interval is not None:
        said |= {"linear-attention-freq": interval, "experimental-attention-variant": "gated_delta_net"}
    if said.pop("enable-dsa-indexer", False):
        said["experimental-attention-variant"] = "dsa"
        said |= {f"dsa-indexer-{key}": said.pop(f"index-{key}") for key in INDEXER if f"index-{key}" in said}


def _memory(said: JsonObject) -> None:
    early = any(said.get(name) for name in ("swap-attention", "recompute-in-advance", "recompute-in-bubble"))
    if early and "recompute-num-layers" in said and "recompute-granularity" not in said:
        # such layers are recomputed whole, without the word for it
        said |= {"recompute-granularity": "full", "recompute-method": said.get("recompute-method", "block")}
    modules = [MODULES[part] for part, flag in PARTS.items() if said.get(flag.lstrip("-"))]
    if modules and "recompute-granularity" not in said:
        for name in PARTS.values():
            said.pop(name.lstrip("-"), None)
        said |= {"recompute-granularity": "selective", "recompute-modules": modules}
    if said.pop("swap-optimizer", False):
        said["optimizer-cpu-offload"] = True
        said.pop("swap-optimizer-times", None)
    if said.pop("o2-optimizer", False):
        said |= {"use-precision-aware-optimizer": True, "exp-avg-dtype": "bf16"}


def _switches(said: JsonObject) -> None:
    algo = said.pop("context-parallel-algo", "ulysses_cp_algo")
    if _read_number(said, "context-parallel-size", 1) > 1:
        said["cp-comm-type"] = EXCHANGES.get(str(algo)) or ("allgather" if "allgather" in str(algo) else "a2a+p2p")
    flash = said.pop("use-flash-attn", False)
    said["attention-backend"] = "flash" if flash else "unfused"
    for name in ("use-mc2", "use-ascend-mc2", "use-ascend-coc"):
        if said.pop(name, False):
            said["tp-comm-overlap"] = True
    if said.pop("gelu-tanh", False):  # gated there
        said["geglu"] = True
    window = said.pop("sliding-window", None)
    if window is not None:
        said["window-size"] = window
    if "ASCEND_LAUNCH_BLOCKING" in said:
        said["CUDA_LAUNCH_BLOCKING"] = said.pop("ASCEND_LAUNCH_BLOCKING")
