"""Turn options in Megatron's words into settings: of a run that trains, or of one that generates text.

Prompts and answers of the latter come from elsewhere: read is the decode step of as many sequences as it takes at a
time, each as long as it allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.core.files import Table
from ridgeline.models.load import model as load_model
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.mesh import DP_LAST
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.dialects.megatron.collect import Given, collect, other_work, speaking
from ridgeline.targets.dialects.megatron.names import ID, MODULES, STATES, STRATEGIES, changes_step, placement_of
from ridgeline.targets.dialects.megatron.read_model import named_by_path, read_model
from ridgeline.targets.imports.option_reader import OptionReader, pick
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.option_table import read_options
from ridgeline.targets.options import DocumentedOptions, options
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import DIALECTS, Files, Imported, Unread, refusal

LONGEST = ("inference-max-seq-length", "inference-max-sequence-length", "max-length", "seq-length")
MOST = table_names("megatron", "most")
WRITTEN = ("num-tokens-to-generate", "tokens-to-generate", "max-new-tokens", "out-seq-length")
# what of a plan a decode step has: no sharding, no recompute, no gradients, no pipeline schedule of training
KEPT = ("tp", "pp", "ep", "etp", "engine", "attention", "moe_dispatch", "sequence_parallel")
DECODE_FORMATS = ("compute", "weights", "activations", "kv", "scaling")
PARTS = {word: part for part, word in MODULES.items()}
FORMATS = {word: id for id, word in STATES.items()}
SHARDS = {"no_shard": "none", "optim": "zero1", **{word: shard for shard, word in STRATEGIES.items()}}
ADAM = ("adam", "adamw", "fusedadam", "fusedadamw", "apex.adam", "apex.fusedadam", "ds.fusedadam", "cpuadam")
OPTIMIZERS = {**dict.fromkeys(ADAM, "adamw"), "sgd": "momentum", "lion": "lion"} | dict.fromkeys(
    ("muon", "dist_muon", "adaptive_muon"), "muon"
)
METHODS = {"uniform": "uniform", "block": "block"}
SCALES = {"tensorwise": "tensor", "delayed": "tensor", "blockwise": "block", "mxfp8": "block"}
NOT_PRICED = "decides nothing that a scenario holds"
CHANGES = "changes the step, and a scenario has no place for it"
# old names of options, which scripts still use
OLDER = table_words("megatron", "older")
# of Pai-Megatron-Patch's program, whose pattern means other layers than Megatron-Core's
QWEN3_NEXT = {"num-layers": 96, "hidden-size": 2048, "num-experts": 512, "moe-router-topk": 10}
GROUPED = ("num-key-value-heads", "n-head-kv")  # options that switch on what they count
# a program of Pai-Megatron-Patch that builds a Llama whatever its options say
LLAMA = {"swiglu": True, "normalization": "RMSNorm", "disable-bias-linear": True}
LLAMA |= {"untie-embeddings-and-output-weights": True}


def decoding(reader: OptionReader) -> tuple[JsonObject, int]:
    """The [workload] table of a decode step at the longest context, and the sequences of each data-parallel replica."""
    context = reader.count(*LONGEST) or 2048
    batch = reader.count(*MOST, default=1) or 1
    reader.skip(*LONGEST, *MOST, *WRITTEN, "global-batch-size")
    step = f"the decode step of {batch} sequences that each hold {context} tokens"
    reader.assumptions.append(f"a run that generates text: {step}")
    return {"kind": "decode", "context": context}, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What reading the plan needs to know beside the options: the engine, the model's size and the ranks started."""

    engine: str
    layers: int
    experts: bool
    world: int | None = None


def read_workload(reader: OptionReader) -> JsonObject:
    """The [workload] table; the global batch may stay open."""
    optimizer: JsonObject = {}
    kind = reader.word("optimizer", among=OPTIMIZERS, default="adamw")
    momentum = reader.take("sgd-momentum")
    if kind == "momentum" and momentum in (0, 0.0, "0", "0.0"):
        kind = "sgd"
    optimizer["name"] = kind
    if reader.switch("use-precision-aware-optimizer"):
        states = reader.word("exp-avg-dtype", among=FORMATS, default="fp32")
        reader.skip("exp-avg-sq-dtype")
        optimizer |= {"states": states} if states != "fp32" else {}
        master = reader.word("main-params-dtype", among=FORMATS, default="fp32")
        optimizer |= {"master": master} if master != "fp32" else {}
    if reader.switch("use-bnb-optimizer"):
        optimizer["states"] = "int8"
    if not any(reader.options.get(name) for name in ("bf16", "fp16")):
        optimizer["master"] = "none"
    count_read: JsonObject = {"kind": "train", "seq": reader.count("seq-length")}
    count_read["global_batch"] = reader.count("global-batch-size")
    if reader.take("rampup-batch-size") is not None:
        reader.assumptions.append("global_batch: that behind the ramp-up of the batch")
    last = re.search(r"\d\S*:(\d{1,7})\W*$", str(reader.options.get("step-batch-size-schedule", "")))
    if last is not None:  # "0:384 200B:768": from so many tokens on
        reader.skip("step-batch-size-schedule")
        count_read["global_batch"] = int(last.group(1))
        reader.assumptions.append("global_batch: the last of the batch's schedule")
    count_read["optimizer"] = optimizer if optimizer != {"name": "adamw"} else None
    tuning_switches = [reader.switch(name) for name in ("sft", "is-instruction-dataset", "finetune")]
    if any(tuning_switches[:2]):
        count_read["task"] = "finetune"
    if count_read["seq"] is None and reader.problems:
        raise InputError(reader.problems)
    if count_read["seq"] is None:
        raise refusal("nothing", "tokens of one sequence", path="--seq-length", todo="say it with --seq")
    return pick(count_read)


def read_plan(reader: OptionReader, seen: RunFacts) -> JsonObject:
    """The [plan] table: what is left out is as a plan leaves it."""
    plan = read_options(ID, "axes", reader)
    if seen.experts:
        plan["ep"] = reader.degree("expert-model-parallel-size")
        plan["etp"] = reader.count("expert-tensor-parallel-size", default=plan["tp"])
    if reader.switch("use-tp-pp-dp-mapping"):
        plan["order"] = DP_LAST
    plan["microbatch"] = reader.degree("micro-batch-size")
    if "micro-batch-size" not in reader:
        reader.assumptions.append("microbatch = 1: the files do not say it")
    plan |= _pipeline(reader, seen.layers, plan["pp"])
    plan |= _sharding(reader, seen, plan)
    plan |= _memory(reader, seen.layers)
    plan["precision"] = _precision(reader)
    plan |= _switches(reader, seen, plan)
    plan["engine"] = seen.engine
    return pick(plan)


def _pipeline(reader: OptionReader, layers: int, pp: int) -> JsonObject:
    layout = reader.take("pipeline-model-parallel-layout")
    layers_each = reader.count("num-layers-per-virtual-pipeline-stage")
    chunks = reader.count("num-virtual-stages-per-pipeline-rank") or 1
    slots = [0] * pp
    slots[0] += reader.switch("account-for-embedding-in-pipeline-split")
    slots[-1] += reader.switch("account-for-loss-in-pipeline-split")
    ends = (reader.count("decoder-first-pipeline-num-layers"), reader.count("decoder-last-pipeline-num-layers"))
    if pp == 1:
        return {}
    if layout is not None:
        placement = placement_of(str(layout))
        chunks = max(1, len(placement) // pp)
    else:
        if layers_each is not None:
            chunks = max(1, (layers + sum(slots)) // pp // layers_each)
        placement = _spread_layers(layers, pp, chunks, (slots, ends))
    schedule: JsonObject = {"schedule": {"name": "interleaved", "chunks": chunks} if chunks > 1 else "1f1b"}
    zero = {"zero-bubble-v-schedule": "zbv", "enable-zbh1-pipeline": "zero-bubble-h1"}  # of Megatron's forks
    schedule_name = next((name for option, name in zero.items() if reader.switch(option)), None)
    if schedule_name:
        schedule = {"schedule": schedule_name}
        reader.skip("enable-zero-bubble")
        placement = _spread_layers(layers, pp, 2, (slots, ends)) if schedule_name == "zbv" else placement
    return schedule | ({"placement": list(placement)} if len(set(placement)) > 1 else {})


def _spread_layers(
    layers: int, pp: int, chunks: int, uneven: tuple[list[int], tuple[int | None, int | None]]
) -> tuple[int, ...]:
    """Layers of each virtual stage: an even share, first and last rank as given, embedding and output as slots."""
    slots, (first, last) = uneven
    fixed = {rank: count for rank, count in ((0, first), (pp - 1, last)) if count is not None}
    open_ranks = [rank for rank in range(pp) if rank not in fixed]
    layers_left = layers - sum(fixed.values()) + sum(slots)
    share = layers_left // len(open_ranks) if open_ranks else 0
    layers_by_rank = [fixed.get(rank, share) for rank in range(pp)]
    stages = [layers_by_rank[stage % pp] // chunks for stage in range(pp * chunks)]
    stages[0] -= slots[0]
    stages[-1] -= slots[-1]
    return tuple(stages)


def _sharding(reader: OptionReader, seen: RunFacts, plan: JsonObject) -> JsonObject:
    shard = "zero1" if reader.switch("use-distributed-optimizer") else "none"
    strategy = reader.word("data-parallel-sharding-strategy", among=SHARDS, default="none")
    if reader.switch("use-megatron-fsdp", "use-custom-fsdp"):
        shard = strategy
        reader.skip("no-gradient-accumulation-fusion", "ckpt-format", "init-model-with-meta-device")
    if reader.switch("use-torch-fsdp2"):
        shard = "zero2" if reader.switch("torch-fsdp2-no-reshard-after-forward") else "zero3"
    shard_plan: JsonObject = {"shard": shard}
    copies = reader.count("num-distributed-optimizer-instances", default=1) or 1
    if copies > 1 and seen.world is not None:
        shard_plan["shard_degree"] = max(1, seen.world // (plan["tp"] * plan["pp"] * copies))
    elif copies > 1:
        reader.taken.discard("num-distributed-optimizer-instances")
    return shard_plan


def _memory(reader: OptionReader, layers: int) -> JsonObject:
    memory_plan: JsonObject = {"recompute": "none"}
    parts: list[str] = []
    kind = reader.word("recompute-granularity", among={"full": "full", "selective": "selective"}, default=None)
    if reader.switch("recompute-activations"):
        kind = "selective"
    earlier = reader.word("activations-checkpoint-method", among=METHODS, default=None)
    if earlier or reader.switch("checkpoint-activations", "deepspeed-activation-checkpointing"):
        kind = kind or "full"  # before recompute had its name
        interval = reader.size("checkpoint-num-layers")
        if interval not in (None, 1):
            reader.assumptions.append(f"recompute: every layer's input is kept, not one of {interval}")
    reader.skip("deepspeed-activation-checkpointing")
    method = reader.take("recompute-method") or earlier
    count = reader.size("recompute-num-layers", "activations-checkpoint-num-layers")
    modules = reader.take("recompute-modules")
    if kind == "full":
        some = {"layers": count} if method == "block" and count is not None else {}
        memory_plan["recompute"] = {"kind": "full", **some} if some else "full"
        if method == "uniform" and count not in (None, 1):
            reader.assumptions.append(f"recompute: every layer's input is kept, not one of {count}")
    elif kind == "selective":
        names = modules if isinstance(modules, (list, tuple)) else [modules or "core_attn"]
        parts = [PARTS[name] for name in names if name in PARTS]
        if len(parts) < len(names):
            reader.taken.discard("recompute-modules")
        memory_plan["recompute"] = {"kind": "selective", "parts": parts} if parts != ["attention"] else "selective"
    if kind != "full" and reader.switch("moe-layer-recompute"):
        parts = parts if kind == "selective" else []
        memory_plan["recompute"] = {"kind": "selective", "parts": [*parts, "moe"]}
    offload = {}
    swapped_layers = reader.size("cpu-offloading-num-layers")
    if swapped_layers:
        offload["activations"] = min(1.0, swapped_layers / layers)
    if reader.switch("optimizer-cpu-offload"):
        offload["optimizer"] = reader.share("optimizer-offload-fraction", default=1.0)
    return memory_plan | ({"offload": offload} if offload else {})


def _precision(reader: OptionReader) -> JsonObject:
    half = reader.switch("fp16")
    stored_format = "bf16" if reader.switch("bf16") else "fp16" if half else "fp32"
    gradient_format = {"bf16": "fp32"}.get(stored_format, stored_format)
    narrow = reader.switch("grad-reduce-in-bf16")
    wide = reader.switch("accumulate-allreduce-grads-in-fp32")
    formats_read: JsonObject = dict.fromkeys(("compute", "weights", "activations", "kv"), stored_format)
    formats_read["gradients"] = "bf16" if narrow and stored_format == "bf16" else "fp32" if wide else gradient_format
    is_sharded = reader.switch("use-megatron-fsdp", "use-custom-fsdp")
    own_word = reader.take("megatron-fsdp-main-grads-dtype" if is_sharded else "main-grads-dtype")
    if own_word in ("bf16", "fp16", "fp32"):
        formats_read["gradients"] = own_word
    recipe = str(reader.take("fp8-recipe", default="delayed"))
    if recipe not in SCALES:
        reader.assumptions.append(f"scaling = tensor, where the files say --fp8-recipe {recipe[:40]}")
    if reader.take("fp8-format", "fp8") is not None:
        formats_read["compute"] = "mxfp8" if recipe == "mxfp8" else "fp8-e4m3"
        formats_read["scaling"] = SCALES.get(recipe, "tensor")
    reader.skip("fp4-recipe")
    if reader.take("fp4-format") is not None:
        formats_read |= {"compute": "nvfp4", "scaling": "block"}
    if reader.switch("fp8-param-gather", "fp4-param-gather"):
        formats_read["weights"] = formats_read["compute"]
    reader.skip("reuse-grad-buf-for-mxfp8-param-ag")
    return formats_read


def _switches(reader: OptionReader, seen: RunFacts, plan: JsonObject) -> JsonObject:
    switch_plan: JsonObject = {}
    split = read_options(ID, "split", reader)
    parallel, exchange = split["sequence_parallel"], split["cp_kind"]
    if parallel != (plan["tp"] > 1) and plan["tp"] > 1:
        switch_plan["sequence_parallel"] = parallel
    way = reader.options.get("cp-comm-type")
    if way not in (None, "p2p", "a2a") and plan["cp"] > 1:
        reader.assumptions.append(f"cp_kind = ring, where the files say {str(way)[:20]}")
    switch_plan |= {"cp_kind": exchange} if exchange != "ring" else {}
    backends = table_words(ID, "backends")
    local = reader.take("transformer-impl") == "local"
    flash = reader.switch("use-flash-attn", default=not local)
    attention = reader.word("attention-backend", among=backends, default="flash" if flash else "unfused")
    switch_plan |= {"attention": attention} if attention != ENGINES[seen.engine].attention else {}
    graph = reader.word("cuda-graph-impl", among=table_words(ID, "graphs"), default="none")
    if reader.switch("enable-cuda-graph", "external-cuda-graph"):
        graph = "partial"
    scope = reader.take("cuda-graph-modules", "cuda-graph-scope")
    graph = "full" if graph == "partial" and scope == "full_iteration" else graph
    if graph == "full":
        reader.skip("no-check-for-nan-in-loss-and-grad")
    reader.skip("te-rng-tracker")
    switch_plan |= {"graph": graph} if graph != "none" else {}
    if seen.experts:
        kind = reader.take("moe-token-dispatcher-type", default="allgather")
        backend = str(reader.take("moe-flex-dispatcher-backend", default="deepep"))
        reader.skip("moe-enable-deepep")
        if kind == "allgather":
            reader.assumptions.append("moe_dispatch: all-to-all, where the script gathers all tokens")
        switch_plan |= {
            "moe_dispatch": backend if kind == "flex" and backend in ("deepep", "hybridep") else "all-to-all"
        }
    if str(reader.take("CUDA_LAUNCH_BLOCKING", default="")) == "1":
        switch_plan["launch_blocking"] = True
    return switch_plan | _overlap(reader, seen, plan)


def _overlap(reader: OptionReader, seen: RunFacts, plan: JsonObject) -> JsonObject:
    """What runs beside compute, where it differs from the engine's habit."""
    sizes_read = read_options(ID, "overlaps", reader)
    sizes_read["pp"] = not reader.switch("no-overlap-p2p-communication")
    if plan.get("schedule", "1f1b") == "1f1b":
        del sizes_read["pp"]
    if plan["tp"] == 1:
        del sizes_read["tp"]
    if plan.get("ep", 1) == 1:
        del sizes_read["moe"]
    overlaps_states = reader.switch("overlap-cpu-optimizer-d2h-h2d")
    offload = plan.get("offload", {})
    if offload:
        sizes_read["offload"] = overlaps_states if "optimizer" in offload else True
    habits = ENGINES[seen.engine].overlaps
    if plan["cp"] > 1 and "cp" not in habits:  # only MindSpeed has to be asked
        sizes_read["cp"] = reader.switch("use-cp-send-recv-overlap")
    differs = {key: value for key, value in sizes_read.items() if value != (key in habits)}
    return {"overlap": differs} if differs else {}


def read(files: Files) -> Imported:
    """The settings of a script, or of a YAML table of arguments."""
    return settings_of(with_model(collect(files), files), ID, "megatron-core")


def with_model(found: Given, files: Files) -> Given:
    """The model and the sequence that the caller names, in place of what the files spell."""
    place = checkout_of(files)
    caller_options = ({"model": place.model} if place.model else {}) | ({"seq-length": place.seq} if place.seq else {})
    return replace(found, options={**found.options, **caller_options}) if caller_options else found


def settings_of(found: Given, target: str, engine: str, names: Mapping[str, str] | None = None) -> Imported:
    """Options in Megatron's words as settings; `names` gives back what another dialect calls them."""
    generates = bool(other_work(found))
    stated_options = {OLDER.get(name, name): value for name, value in found.options.items() if name != "model"}
    if any(name in found.options for name in GROUPED):
        stated_options["group-query-attention"] = True
        stated_options.pop("attention-head-type", None)
    if stated_options.pop("RMSNorm", False):  # of Megatron-LLaMA, before normalization had a name
        stated_options.setdefault("normalization", "RMSNorm")
    if stated_options.pop("disable-bias-linear-fc", False) and stated_options.pop("disable-bias-attn-fc", False):
        stated_options |= {"disable-bias-linear": True, "add-qkv-bias": True}
    spells_width = "ffn-hidden-size" in stated_options or "model" in found.options
    if "intermediate-size" in stated_options and not spells_width:
        stated_options = _by_program(stated_options, found)
    if "qwen3_next" in found.program and all(stated_options.get(name) == size for name, size in QWEN3_NEXT.items()):
        found = replace(found, options={**found.options, "model": found.options.get("model", "qwen3-next-80b-a3b")})
    if stated_options.get("model-type") == "mamba" or re.search(r"(train|pretrain)_mamba", found.program):
        stated_options.setdefault("is-hybrid-model", True)
    reader = OptionReader(Table(data=stated_options, source=found.source))
    if "model" in found.options:  # named rather than spelled
        model: str | JsonMapping = found.options["model"]
        read_model_quietly(reader, found.hint)
    else:
        model = read_model(reader, found.hint or named_by_path(found.path))
    spec = load_model(model)
    workload, replica = decoding(reader) if generates else (read_workload(reader), None)
    run_facts = RunFacts(engine=engine, layers=spec.layers, experts=has_experts(spec), world=found.world)
    plan = read_plan(reader, run_facts)
    if generates:
        formats = {key: value for key, value in plan["precision"].items() if key in DECODE_FORMATS}
        plan = {key: value for key, value in plan.items() if key in KEPT} | {"precision": formats}
    option_list = options(target if target not in ("primus", *DIALECTS) else ID)
    unread = tuple(_explain_unread(part, option_list, names or {}) for part in reader.unread({}))
    per_rank = replica or (None if "global_batch" in workload else plan["microbatch"])
    notes = (*(f"left out: {note}" for note in found.notes), *reader.assumptions)
    settings = {"model": model, "workload": workload, "plan": plan}
    facts: JsonObject = {"per_rank": per_rank, "chips": found.world}
    return Imported(target=target, settings=settings, unread=unread, assumptions=notes, **facts)


def _by_program(said: JsonObject, found: Given) -> JsonObject:
    """The options of a run whose program builds its layers by itself, where it is known what it builds."""
    if "starcoder" in found.program:  # GPT-BigCode: one key and value head, the rest as Megatron's own GPT
        return {**said, "attention-head-type": "multiquery", "ffn-hidden-size": said["intermediate-size"]}
    if not re.search(r"llama|baichuan", f"{found.program} {found.path}".lower()):
        given_text = f"layers that {(found.program or found.path).split('/')[-1][:60]} builds"
        expected_text, todo = "layers that the options spell", "name the model with --model"
        raise refusal(given_text, expected_text, path="--intermediate-size", todo=todo)
    positions = {"position-embedding-type": "alibi" if said.pop("use-alibi-mask", False) else "rope"}
    return {**said, **LLAMA, **positions, "ffn-hidden-size": said["intermediate-size"]}


def read_model_quietly(reader: OptionReader, hint: str) -> None:
    """Note the model's options as read where the caller names the model himself."""
    before, notes = list(reader.problems), list(reader.assumptions)
    with suppress(InputError):
        read_model(reader, hint)
    reader.problems, reader.assumptions = before, notes


def _explain_unread(part: Unread, known: DocumentedOptions, names: Mapping[str, str]) -> Unread:
    option_name = names.get(part.option, part.option)
    is_documented = option_name in known.flags or option_name in known.values or "." in option_name
    why = NOT_PRICED if is_documented else f"not among the options recorded of {known.target} {known.version}"
    matters = changes_step(part.option, part.value)
    value = "" if part.value == "True" else part.value
    return replace(part, option=option_name, value=value, why=CHANGES if matters else why, matters=matters)


def recognises(files: Files) -> bool:
    """Whether a script or a table speaks of --num-layers."""
    return any(True for _ in speaking(files))
