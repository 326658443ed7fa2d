"""MindSpeed-LLM on Ascend: arguments of its pretrain_gpt.py in a shell script, and such scripts read back.

Of two models the file of layers builds others than Megatron's words spell. LongCat: two attentions, two dense MLPs and
experts beside the first MLP are written as two layers; zero experts, which do nothing, are further choices of the
router. DeepSeek-V4: compressed attention by `--compress-ratios` (0 the window alone, 4 pooled and picked by an indexer,
128 pooled), hyper-connections around both parts of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.models.load import model as load_model
from ridgeline.models.numerics import numerics_of
from ridgeline.models.spec import Attention, LatentAttention, Moe
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.megatron import write as plan_words
from ridgeline.targets.dialects.megatron.collect import collect, speaking
from ridgeline.targets.dialects.megatron.names import ID as MEGATRON
from ridgeline.targets.dialects.megatron.names import MODULES, flags_of, layout_of, pattern_of
from ridgeline.targets.dialects.megatron.read import settings_of, with_model
from ridgeline.targets.dialects.megatron.write import MODEL, arrays, precision, said_by, with_arguments
from ridgeline.targets.dialects.megatron.write_model import Writer
from ridgeline.targets.imports.model_names import known_as
from ridgeline.targets.launchers.launch import NodeCommand
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admit_options, gather, habits, lose
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import nearest, normal_recompute
from ridgeline.targets.tables import names, word_lists, words
from ridgeline.targets.target import Export, Files, Imported, refusal

ID = "mindspeed"
RENAMED = words(ID, "renamed")  # Megatron's name -> MindSpeed's, where only the name differs
PARTS = words(ID, "parts")  # a part of a layer -> the flag that recomputes it
ALGORITHMS = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo"}  # Megatron's cp-comm-type -> context-parallel-algo
OFF = plan_words.OFF
EXPERTS = "--overlap-moe-expert-parallel-comm"
ENVIRONMENT = words(ID, "environment")
CHECKOUT = (
    "# MINDSPEED_LLM is a checkout of MindSpeed-LLM with Megatron-LM inside, as a whole path or below this folder."
)
HYBRID = "pretrain_gpt.py has attention in every layer; hybrids have scripts of their own there"
NORMALIZED = "model.numerics.router.normalized"
LONGCAT = ("moe-with-double-attention", "enable-mla-scale-q-lora", "enable-mla-scale-kv-lora", "num-zero-experts")
RATIOS = (0, 4, 128)
SIGNS = re.compile(
    r"mindspeed|MindSpeed|modellink|ModelLink|NPUS_PER_NODE|Ascend/ascend-toolkit|HCCL_CONNECT_TIMEOUT|ASCEND_"
    r"|multi-head-latent-attention|context-parallel-algo|moe-tp-extend-ep|first-k-dense-replace|use-ascend-coc"
    r"|--use-fused-(rmsnorm|swiglu)(?! +[\w$\"])"  # without a value, which other dialects give it
)
OWN = {name.lstrip("-"): megatron_name.lstrip("-") for megatron_name, name in RENAMED.items() if name.startswith("--")}
PLAIN_SPECS = names(ID, "plain_specs")  # files of layers whose layers are those that the options spell
GATED_SPECS = ("qwen3_next", "qwen2_moe")  # whose shared expert has a gate
ADAPTED = word_lists(ID, "adapted")
INDEXER = ("n-heads", "head-dim", "topk")
EXCHANGES = {algorithm: kind for kind, algorithm in ALGORITHMS.items()}


def axes(scenario: Scenario) -> Iterator[Piece]:
    """Experts are cut as tensor ranks cut them, or tensor ranks hold further experts instead."""
    mesh = scenario.plan.mesh
    own_words = ("--expert-model-parallel-size", "--expert-tensor-parallel-size")
    yield from (piece for piece in plan_words.axes(scenario) if getattr(piece, "option", "") not in own_words)
    if not has_experts(scenario.model):
        return
    paths = ("plan.ep", "plan.etp")
    if mesh.etp == mesh.tp:
        yield Say("--expert-model-parallel-size", mesh.ep, *paths)
    elif mesh.etp == 1 and mesh.ep % mesh.tp == 0:
        yield Say("--expert-model-parallel-size", mesh.ep // mesh.tp, *paths)
        yield Say("--moe-tp-extend-ep", True, *paths)
    else:
        fits = mesh.tp * mesh.cp * mesh.dp % (mesh.ep * mesh.tp) == 0
        yield Say("--expert-model-parallel-size", mesh.ep if fits else 1, "plan.ep")
        why = "tensor ranks cut every expert, or hold further ones and ep is a multiple of tp"
        yield from lose(why, "plan.etp", *(() if fits else ("plan.ep", "plan.overlap.moe")))


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """1f1b with a list of layers, interleaved and dualpipe-v with empty layers that fill short stages."""
    plan, name = scenario.plan, scenario.plan.schedule.name
    if plan.mesh.pp == 1:
        return
    paths = ("plan.schedule.name", "plan.schedule.chunks")
    placement = scenario.placement
    if name == "1f1b":
        if len(set(placement)) > 1:
            yield Say("--num-layer-list", ",".join(map(str, placement)), "plan.placement")
        yield from habits(MEGATRON, "stages")
        yield Fixed("plan.placement", placement, "an even split is the default")
        return
    empty, why = empty_layers(scenario), ""
    lost_paths = [*paths, "plan.placement"]
    if len(set(placement)) > 1 and not empty and name in ("interleaved", "dualpipe-v"):
        why = "empty layers, which fill short stages, cannot stand among the dense ones at the start"
        lost_paths += ["plan.overlap.pp", "plan.overlap.moe"]
    elif name != "interleaved" and not _dual(scenario):
        why = "schedules are 1f1b, interleaved 1f1b, and dualpipev: experts, untied embeddings, no context ranks"
    if why:
        yield from lose(why, *lost_paths)
        layers_by_rank = plan_words.by_rank(scenario)
        if len(set(layers_by_rank)) > 1:  # as many layers on each rank as planned
            yield Say("--num-layer-list", ",".join(map(str, layers_by_rank)))
        return
    if _dual(scenario):
        yield Say("--schedules-method", "dualpipev", *paths)
        yield Say("--moe-fb-overlap", True, *paths)
        yield Fixed("plan.overlap.moe", True, "dualpipev always overlaps the exchange of experts")
        yield Fixed("plan.overlap.pp", True, "dualpipev always overlaps its sends")
    else:
        yield Say("--num-layers-per-virtual-pipeline-stage", max(placement), *paths)
    if empty:
        yield Say("--noop-layers", ",".join(map(str, empty)), "plan.placement")
    yield Fixed("plan.placement", placement, "an even split is the default")


def empty_layers(scenario: Scenario) -> tuple[int, ...]:
    """Numbers of the layers that do nothing, so that every virtual stage counts as many as the fullest."""
    plan = scenario.plan
    if plan.mesh.pp == 1 or plan.schedule.name not in ("interleaved", "dualpipe-v"):
        return ()
    if plan.schedule.name == "dualpipe-v" and not _dual(scenario):
        return ()
    largest = max(scenario.placement)
    blocks, placement = scenario.model.blocks, enumerate(scenario.placement)
    sparse = (index for index, kind in enumerate(scenario.model.order) if isinstance(blocks[kind].ffn, Moe))
    dense = next(sparse, 0)
    empty_slots = [stage * largest + slot for stage, layers in placement for slot in range(layers, largest)]
    return () if empty_slots and empty_slots[0] < dense else tuple(empty_slots)


def optimizer(scenario: Scenario) -> Iterator[Piece]:
    """States in fp32, or in bf16 for adam; no copy of weights in another format."""
    work = training(scenario).workload
    for piece in plan_words.optimizer(scenario):
        about = getattr(piece, "path", "") or " ".join(getattr(piece, "paths", ()))
        if "states" not in about and (isinstance(piece, Fixed) or "master" not in about):
            yield piece
    if work.optimizer.states.id == "bf16":
        yield Say("--o2-optimizer", True, "workload.optimizer.states")


def sharding(scenario: Scenario) -> Iterator[Piece]:
    """The distributed optimizer over all data-parallel ranks."""
    plan, shard = scenario.plan, scenario.plan.sharding.shard
    if shard != "none":
        yield Say("--use-distributed-optimizer", True, "plan.shard")
    if shard in ("zero2", "zero3"):
        yield Lose("plan.shard", "only optimizer states are sharded: zero1 is written")
    yield Fixed("plan.shard", "none", OFF)
    yield Fixed("plan.shard_degree", plan.mesh.dp * plan.mesh.cp, "over all data-parallel ranks")


def recompute(scenario: Scenario) -> Iterator[Piece]:
    """Whole layers of each virtual stage, and activation functions in the others; attention; or named parts."""
    chosen = normal_recompute(scenario)
    even = len(set(scenario.placement)) == 1  # layers are counted as if stages were alike
    two = chosen.kind == "full" and isinstance(chosen.layers, int) and chosen.rest == "selective"
    if even and two and set(chosen.parts) == {"activation"}:  # the one pair of ways that it knows
        yield from plan_words.recompute_words(scenario, chosen)
        yield Say(PARTS["activation"], True, "plan.recompute.rest")
        return
    written = nearest(scenario, PARTS)
    if chosen.kind == "selective" and set(chosen.parts) == {"attention"}:
        written = replace(chosen, layers=None, rest="none")
        parts = plan_words.parts_path(scenario, chosen)
        yield Say("--recompute-granularity", "selective", "plan.recompute.kind", *parts)
    elif written.kind == "selective":
        for part in written.parts:
            yield Say(PARTS[part], True, "plan.recompute.kind", *plan_words.parts_path(scenario, written))
        if even and isinstance(chosen.layers, int) and set(chosen.parts) == {"activation"}:
            written = replace(written, layers=chosen.layers)
            yield Say("--recompute-activation-function-num-layers", chosen.layers, "plan.recompute.layers")
    else:
        yield from plan_words.recompute_words(scenario, written)
    yield Fixed("plan.recompute.layers", None, "in every layer")
    able = "one number for all stages; attention, or norm, activation, latent"
    yield from plan_words.recompute_losses(scenario, written, able)


def offload(scenario: Scenario) -> Iterator[Piece]:
    """All optimizer states or none; activations are swapped by module, which a share does not say."""
    share = scenario.plan.offload
    yield from habits(ID, "offload")
    if share.optimizer == 1.0 and scenario.plan.sharding.shard != "none":
        yield Say("--swap-optimizer", True, "plan.offload.optimizer")
    elif share.optimizer:
        yield Lose("plan.offload.optimizer", "all states, with the distributed optimizer")


def switches(scenario: Scenario) -> Iterator[Piece]:
    """Flash attention on request; how context ranks exchange."""
    pieces_said = (*plan_words.switches(scenario), *plan_words.overlaps(scenario))
    overlaps_experts = _dual(scenario) or any(getattr(piece, "option", "") == EXPERTS for piece in pieces_said)
    by_schedule = ("plan.overlap.moe", "plan.overlap.pp") if _dual(scenario) else ()
    for piece in pieces_said:
        option, path = getattr(piece, "option", ""), getattr(piece, "path", "")
        if option == "--attention-backend" or path in by_schedule:
            continue
        if isinstance(piece, Fixed) and path == "plan.overlap.cp":
            continue
        overlaps = overlaps_experts and option in ("--overlap-grad-reduce", "--overlap-param-gather")
        if isinstance(piece, Say) and overlaps:
            yield from lose("not together with the overlap of expert exchange", *piece.paths)
        else:
            yield piece
    if resolve(scenario).attention == "flash":
        yield Say("--use-flash-attn", True, "plan.attention")
    yield from habits(ID, "switches")
    ring = scenario.plan.switches.cp_kind == "ring" and scenario.plan.mesh.cp > 1
    if ring and resolve(scenario).overlap.cp:
        yield Say("--use-cp-send-recv-overlap", True, "plan.overlap.cp")


def _dual(scenario: Scenario) -> bool:
    """Whether the V-shaped schedule can be asked for: no tied embeddings, no context ranks, enough microbatches."""
    plan = scenario.plan
    is_requested = plan.mesh.pp > 1 and plan.schedule.name == "dualpipe-v" and has_experts(scenario.model)
    able = plan.mesh.cp == 1 and not scenario.model.embedding.tied
    return is_requested and able and scenario.microbatches >= 2 * plan.mesh.pp - 1


PLAN: tuple[Writer, ...] = (
    axes, pipeline, plan_words.batch, optimizer, sharding, recompute, offload, precision, switches,
)  # fmt: skip


def spoken(scenario: Scenario, writers: tuple[Writer, ...]) -> Iterator[Piece]:
    """The writers' pieces in MindSpeed's own words."""
    for writer in writers:
        for piece in writer(scenario):
            if isinstance(piece, Fixed) and piece.path == NORMALIZED:
                yield Fixed(NORMALIZED, False, "weights of the picked experts stay as they are unless told otherwise")
            else:
                yield from _own_words(piece, scenario) if isinstance(piece, Say) else (piece,)


def _own_words(piece: Say, scenario: Scenario) -> Iterator[Piece]:
    option, value, paths = piece.option, piece.value, piece.paths
    match option:
        case "--num-layers":
            yield Say(option, value + len(empty_layers(scenario)), *paths)
        case "--moe-layer-freq":
            flags = flags_of(str(value), scenario.model.layers)
            dense = flags.index(True)
            if all(flags[dense:]):
                yield Say("--first-k-dense-replace", dense, *paths)
                yield Say("--moe-layer-freq", 1, *paths)
            else:
                yield from lose("dense layers first, then experts in every layer", *paths, "model.blocks.*.ffn.*")
        case "--moe-shared-expert-intermediate-size":
            width = next(block.ffn.hidden for block in scenario.model.blocks if isinstance(block.ffn, Moe))
            if value % width == 0:
                yield Say("--n-shared-experts", value // width, *paths)
            else:
                yield from lose(f"a multiple of the width of one expert ({width})", *paths)
        case "--window-size":
            yield Say("--sliding-window", int(str(value).split(",")[0]), *paths)
        case "--use-rope-scaling":
            yield Say("--rope-scaling-type", "llama3", *paths)
        case "--rope-type":
            if value == "yarn":
                yield Say("--rope-scaling-type", "yarn", *paths)
                yield Say("--rope-scaling-original-max-position-embeddings", 4096)
        case "--position-embedding-type" if value == "yarn":
            yield Say(option, "rope", *(path for path in paths if path.startswith("model.blocks")))
            yield Say("--rope-scaling-type", "yarn", *(path for path in paths if path.startswith("model.numerics")))
        case "--yarn-original-max-position-embeddings":
            yield Say("--rope-scaling-original-max-position-embeddings", value, *paths)
        case "--moe-router-score-function":
            yield Say(option, value, *paths)
            router = numerics_of(scenario.model).router
            if router is not None and router.normalized:  # a softmax over all experts is left as it is otherwise
                yield Say("--norm-topk-prob", True, NORMALIZED)
        case "--moe-router-pre-softmax":
            return
        case "--cp-comm-type":
            yield Say("--context-parallel-algo", ALGORITHMS[value], *paths)
        case _:
            yield Say(RENAMED.get(option, option), value, *paths)


def run_options(scenario: Scenario) -> JsonObject:
    """What a first run needs beside the decisions, and the fused kernels that the project's own scripts ask for."""
    model = scenario.model
    first_run: JsonObject = {"--use-mcore-models": True, "--mock-data": True, "--tokenizer-type": "NullTokenizer"}
    if all(block.norm.kind == "rms" for block in model.blocks):
        first_run["--use-fused-rmsnorm"] = True
    if all(block.ffn is not None and block.ffn.gated and block.ffn.activation == "silu" for block in model.blocks):
        first_run["--use-fused-swiglu"] = True
    if any(isinstance(block.mixer, LatentAttention) for block in model.blocks):
        first_run["--spec"] = ("mindspeed_llm.tasks.models.spec.deepseek_spec", "layer_spec")
    first_run |= {"--train-iters": 50, "--lr": "1.0e-4", "--attention-dropout": 0.0, "--hidden-dropout": 0.0}
    return first_run | {"--log-interval": 1, "--eval-iters": 0, "--distributed-backend": "nccl"}


def write(scenario: Scenario) -> Export:
    """The launch scripts and the arguments of pretrain_gpt.py."""
    option_list = options(ID)
    engine = Fixed("plan.engine", "mindspeed", "the software that runs it, whatever the prediction assumed")
    model = list(admit_options(spoken(scenario, MODEL), option_list))
    if any(not isinstance(block.mixer, (Attention, LatentAttention)) for block in scenario.model.blocks):
        model = [Lose("model.*", HYBRID)]
    decisions = gather(decisions_of(scenario), [engine, *model, *admit_options(spoken(scenario, PLAN), option_list)])
    command = NodeCommand(
        words=(),
        environment=ENVIRONMENT | {name: value for name, value in decisions.options.items() if name.isupper()},
        before=CHECKOUT + "\n" + arrays(decisions.options, run_options(scenario), said_by(model)),
        tail='"${MINDSPEED_LLM:-MindSpeed-LLM}/pretrain_gpt.py" "${MODEL_ARGS[@]}" "${PLAN_ARGS[@]}" "${RUN_ARGS[@]}"',
    )
    return with_arguments(ID, scenario, command, decisions)


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
    config: JsonObject = {key: _number(said, name) for key, name in words(ID, "deepseek4").items()}
    config |= {"model_type": "deepseek_v4", "num_key_value_heads": 1, "n_shared_experts": 1}
    config |= {"compress_ratios": listed_values, "num_nextn_predict_layers": _number(said, "mtp-num-layers", 0)}
    config |= {"vocab_size": _stated_size(said, "padded-vocab-size", "vocab-size", 129280)}
    config |= {"max_position_embeddings": _stated_size(said, "max-position-embeddings", "seq-length", 163840)}
    config |= {"tie_word_embeddings": not said.get("untie-embeddings-and-output-weights", False)}
    load_model(config)  # what is wrong is said in the words of the configuration
    for name in names(ID, "noted"):
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
    for translate in (_spec, _experts, _memory, _switches, _linear):
        translate(stated_options)
    back = {megatron_name: own_name for own_name, megatron_name in OWN.items()}
    options_translated = {OWN.get(name, name): value for name, value in stated_options.items()}
    run = settings_of(replace(run_options, options=options_translated), ID, "mindspeed", back)
    if run.settings["workload"]["kind"] != "train":
        return run
    some_layers = stages and run.settings["plan"]["recompute"] != "none"
    if some_layers and (not recomputes or recomputes["kind"] == "full"):
        recomputes = {**(recomputes or {"kind": "full"}), "layers": stages}
    changes: JsonObject = {"recompute": recomputes} if recomputes else {}
    return run.with_settings(workload=task, plan=changes | ({"schedule": "dualpipe-v"} if dual else {}))


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
    by_rank = said.pop("enable-recompute-layers-per-pp-rank", False)
    if (
        not by_rank
        or type(layers_each) is not int
        or type(layers) is not int
        or layers_each < 1
        or layers > MOST_LAYERS
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
        first_slots = (stage * slots for stage in range(stages))
        counts = [slots - sum(first <= number < first + slots for number in empty) for first in first_slots]
    said["num-layers"] = total - len(empty)
    if counts and pp > 1:
        ahead = _read_number(said, "mtp-num-layers", 0)
        said["pipeline-model-parallel-layout"] = layout_of(tuple(twice * count for count in counts), ahead)
    if twice > 1 and type(said.get("recompute-num-layers")) is int:
        said["recompute-num-layers"] *= twice


def _numbers(value: object) -> list[int]:
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
        flags = tuple(layer >= dense and layer % interval == 0 for layer in range(min(layers, MOST_LAYERS)))
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
    said["attention-backend"] = "flash" if said.pop("use-flash-attn", False) else "unfused"
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
