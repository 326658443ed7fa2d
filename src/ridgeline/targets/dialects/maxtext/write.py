"""Turn a Scenario into MaxText's YAML and the scripts that launch it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, inf, nextafter

from ridgeline.core.documents import JsonObject
from ridgeline.hardware.system import System
from ridgeline.models.load import MODELS
from ridgeline.models.numerics import Router, numerics_of
from ridgeline.models.spec import Attention, LatentAttention, Mlp, ModelSpec, Moe, Norm
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.megatron.write_model import unknown_losses
from ridgeline.targets.launchers.launch import ON_NODE, NodeCommand, account_run, comment, export_run, nodes_of, on_node
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits, lose
from ridgeline.targets.option_table import option_names, say_options
from ridgeline.targets.options import LONG_FORMATS, options
from ridgeline.targets.recompute_fallback import fallback_losses, same_everywhere
from ridgeline.targets.tables import sizes as table_sizes
from ridgeline.targets.tables import values, word_lists, word_pairs, words
from ridgeline.targets.target import Export, Files, refusal
from ridgeline.targets.vendors import vendor_of
from ridgeline.targets.yaml_text import yaml_text

ID = "maxtext"
# catalog id -> model_name, where MaxText's own model file describes the same model
MODELS_NAMED = words("maxtext", "models_named")
# other names of the same models, which are read
ALSO_NAMED = words("maxtext", "also_named")
# model_name -> the vocabulary of its file, where it is rounded
VOCABULARIES = table_sizes("maxtext", "vocabularies")
FIXED_OPTIMIZER = {"gpt3-175b": "adam_pax"}  # a model's file stands above ours
# the start of the names of models whose blocks Muon is let loose on
MUON = ("deepseek", "kimi", "qwen3", "gpt-oss", "gemma3", "llama2", "llama3")
OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}
# remat_policy -> what it recomputes: it keeps named products, the rest is done again; less first
POLICIES = values("maxtext", "policies")
LIKE = words("maxtext", "like")
# for remat_policy = custom: tensors of one layer, by what keeping them spares
PROJECTIONS = ("query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "out_proj")
WIDE = ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo")
# projections that spare a second pass through the layer's inputs when all of a row are kept
PROJECTED = (("query_proj", "key_proj", "value_proj"), ("query_proj", "kv_proj"), ("qkv_proj",))
WIDENED = ("mlpwi", "mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1")  # what `mlpwo` alone does not spare
CONTEXT = ("context", "attention_out")
INPUT = "decoder_layer_input"
OTHERS = ("query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv", "moe_x_sorted", "moe_routing_maps")
# (format, what shares a scale) -> quantization; Transformer Engine's on GPUs, qwix's on TPUs
ON_GPU, ON_TPU = word_pairs(ID, "on_gpu"), word_pairs(ID, "on_tpu")
BY_QWIX = ("fp8_full", "int8")
# quantization -> (format, what shares a scale)
QUANTIZED = {word: tuple(means) or None for word, means in word_lists(ID, "quantized").items()}
ALSO_AXES = {"fsdp": "fsdp_transpose", "context": "context_usp_ulysses"}  # axis -> one that splits the same
AXES = ("data", "fsdp", "tensor", "tensor_sequence", "context", "pipeline", "expert")
TWO_DEVICES = ("tpu-v7x",)  # chips whose two cores JAX counts as devices of their own
OUTERMOST = ("pipeline", "data", "fsdp", "expert", "context", "tensor", "tensor_sequence")
FILE = "maxtext.yml"
RUN = ("run_name=ridgeline", "steps=50", "dataset_type=synthetic", "enable_checkpointing=false")
SEGMENTS = 32  # documents in a packed sequence that cuDNN makes room for, as in MaxText's own GPU files
OUTPUT = 'base_output_directory="${OUTPUT:-$PWD/output}"'
# collectives beside compute, as the published recipes for TPUs ask for
POOL = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.94"}  # of a GPU's memory; JAX takes three quarters unless told
LIBTPU = (
    "--xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true "
    "--xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
)
SLICES = word_lists(ID, "slices")  # chip -> how Google names a slice: a word, and what a chip counts there
COORDINATOR = 'export JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT" NNODES NODE_RANK'


def devices_of(chip: str) -> int:
    """How many devices JAX counts for a chip.

    >>> devices_of("tpu-v7x"), devices_of("tpu-v5p")
    (2, 1)
    """
    return 2 if chip in TWO_DEVICES else 1


def parts_of(policy: str, experts: bool) -> tuple[str, ...]:
    """The parts a selective policy recomputes; in models with experts those of the wide layers are meant too.

    >>> parts_of("save_dot_except_mlp", True)
    ('attention', 'mlp', 'moe', 'norm')
    """
    parts = tuple(POLICIES[policy][1])
    return tuple(sorted({*parts, "moe"})) if experts and "mlp" in parts else parts


def plain_block(model: ModelSpec) -> tuple[Attention, Mlp | Moe] | None:
    """The parts of a model of equal pre-norm layers as Llama and Mixtral have them."""
    if len(model.blocks) != 1 or model.mtp or model.vision or model.norm != Norm():
        return None
    block = model.blocks[0]
    mixer, ffn, embedding = block.mixer, block.ffn, model.embedding
    if not isinstance(mixer, Attention) or not isinstance(ffn, (Mlp, Moe)):
        return None
    plain_mixer = Attention(heads=mixer.heads, kv_heads=mixer.kv_heads, head_dim=mixer.head_dim)
    plain_ffn: Mlp | Moe = (
        Mlp(hidden=ffn.hidden) if isinstance(ffn, Mlp) else Moe(experts=ffn.experts, topk=ffn.topk, hidden=ffn.hidden)
    )
    outer = (embedding.positions, embedding.width, embedding.norm, embedding.head_bias) == (0, 0, None, False)
    same = mixer == plain_mixer and ffn == plain_ffn and outer
    usual = (block.norm, block.norms, block.parallel, block.extra, block.beside) == (Norm(), 2, False, 0, None)
    return (mixer, ffn) if same and usual else None


def plain_sizes(model: ModelSpec, mixer: Attention, ffn: Mlp | Moe) -> JsonObject:
    """The sizes of such a model; every software that spells them has its own names for them in its table."""
    sizes: JsonObject = {"hidden": model.hidden, "layers": model.layers, "vocab": model.vocab}
    sizes |= {"context": model.context or 8192, "tied": model.embedding.tied, "inner": ffn.hidden}
    return sizes | {name: getattr(mixer, name) for name in ("heads", "kv_heads", "head_dim")}


def on_tpu(system: System) -> bool:
    """Whether the chips are TPUs; everything else MaxText calls a gpu."""
    return vendor_of(system).device == "tpu"


def batch(scenario: Scenario) -> Iterator[Piece]:
    """A pipeline cuts its microbatches out of one batch of all chips; without one gradients are accumulated."""
    work, plan = training(scenario).workload, scenario.plan
    yield from say_options(ID, "seq", decisions_of(scenario))
    sequences, steps = work.sequences, scenario.microbatches
    if plan.mesh.pp > 1:
        count, sequences, lost = cut(scenario)
        steps = 1
        yield Say("num_pipeline_microbatches", count, "plan.microbatch")
        yield from lost
    devices = scenario.system.chips * devices_of(scenario.system.chip.id)
    yield Say("per_device_batch_size", share(sequences // steps, devices), "workload.global_batch", "plan.microbatch")
    yield Say("gradient_accumulation_steps", steps, "workload.global_batch", "plan.microbatch")


def share(sequences: int, devices: int) -> float:
    """The number that MaxText multiplies by devices and cuts to a whole one, so that it comes to these sequences.

    >>> share(8, 64), int(share(27, 49) * 49), int(27 / 49 * 49)
    (0.125, 27, 26)
    """
    chips_per_node = sequences / devices
    while int(chips_per_node * devices) < sequences:
        chips_per_node = nextafter(chips_per_node, inf)
    return chips_per_node


def cut(scenario: Scenario) -> tuple[int, int, list[Lose]]:
    """Microbatches of a pass, a multiple of the stages; the sequences of the step; and what had to change."""
    plan = scenario.plan
    pp, dp, count = plan.mesh.pp, plan.mesh.dp, scenario.microbatches
    rank_sequences = plan.microbatch * count
    if count % pp == 0:
        return count, rank_sequences * dp, []
    why = f"the pipeline takes a multiple of its {pp} stages in microbatches"
    fits = [size for size in range(pp, rank_sequences + 1, pp) if rank_sequences % size == 0]
    if fits:
        nearest = min(fits, key=lambda size: (abs(size - count), -size))
        lost = Lose("plan.microbatch", f"{why}: written with {nearest} of {rank_sequences // nearest}")
        return nearest, rank_sequences * dp, [lost]
    more = -(-count // pp) * pp
    sequences = more * plan.microbatch * dp
    return more, sequences, [Lose("workload.global_batch", f"{why}: written with {sequences} sequences")]


def mesh(scenario: Scenario) -> Iterator[Piece]:
    """Every axis, between slices and inside one."""
    plan, axes = scenario.plan, scenario.plan.mesh
    yield from axes_of(scenario)[1]
    paths = word_lists(ID, "axis_paths")
    parts = axis_degrees(scenario)
    for axis, (between, within) in parts.items():
        yield Say(f"dcn_{axis}_parallelism", between, *paths[axis])
        yield Say(f"ici_{axis}_parallelism", within, *paths[axis])
    if plan.sharding.shard == "zero1":
        yield Say("shard_optimizer_over_data", True, "plan.shard")
    if axes.cp > 1:
        yield from exchange(scenario, parts["context"][0])
    yield Fixed("plan.etp", axes.tp if has_experts(scenario.model) else 1, "the tensor axis splits experts too")


def axis_degrees(scenario: Scenario) -> dict[str, tuple[int, int]]:
    """Every axis as (between slices, inside one), in devices as JAX counts them."""
    degrees, _ = axes_of(scenario)
    axis = second(scenario)
    if axis:
        degrees = {**degrees, axis: degrees[axis] * 2}
    return split(degrees, scenario.system.chips // inside(scenario.system))


def second(scenario: Scenario) -> str:
    """The axis that takes the second device of a chip, where JAX counts two: data's if a microbatch halves."""
    plan = scenario.plan
    if devices_of(scenario.system.chip.id) == 1:
        return ""
    if plan.microbatch % 2:
        return "tensor_sequence" if plan.sequence_parallel else "tensor"
    return "fsdp" if plan.sharding.shard in ("zero2", "zero3") else "data"


def axes_of(scenario: Scenario) -> tuple[dict[str, int], list[Lose]]:
    """The degree of every axis, and what could not be kept."""
    plan, axes = scenario.plan, scenario.plan.mesh
    shard, lost = plan.sharding.shard, []
    ep = axes.ep
    if axes.dp % ep:
        lost.append(Lose("plan.ep", "experts take ranks of data parallelism only"))
        ep = gcd(axes.dp, ep)
    fsdp = 1
    if shard in ("zero2", "zero3"):
        fsdp, remainder = divmod(plan.shard_degree, axes.cp * ep)
        if remainder or not fsdp or (axes.dp // ep) % fsdp:
            lost.append(Lose("plan.shard_degree", "a shard is split over whole context and expert groups"))
            fsdp = axes.dp // ep
    if shard == "zero2":
        lost.append(Lose("plan.shard", "gradients are sharded with the weights: written as zero3"))
    if shard in ("none", "zero1") and axes.cp * ep > 1:
        lost.append(Lose("plan.shard", "weights are split over context and expert ranks in any case"))
    if shard == "zero1" and plan.shard_degree != axes.dp:
        lost.append(Lose("plan.shard_degree", "the optimizer is split over all of the data axis"))
    sequence = "tensor_sequence" if plan.sequence_parallel else "tensor"
    degrees = {"pipeline": axes.pp, "data": axes.dp // ep // fsdp, "fsdp": fsdp, "expert": ep, "context": axes.cp}
    return degrees | {"tensor": 1, "tensor_sequence": 1} | {sequence: axes.tp}, lost


def inside(system: System) -> int:
    """Chips of one slice: a TPU's own network, or one host of other chips."""
    if on_tpu(system):
        size = system.tiers[0].chips if system.tiers else system.chips
        return size if system.chips % size == 0 else system.chips
    return nodes_of(system)[1]


def split(degrees: Mapping[str, int], slices: int) -> dict[str, tuple[int, int]]:
    """Each axis as (between slices, inside one); outer axes go between slices first.

    >>> split({"pipeline": 2, "data": 4, "fsdp": 8}, 4)
    {'pipeline': (2, 1), 'data': (2, 2), 'fsdp': (1, 8)}
    """
    parts: dict[str, tuple[int, int]] = {}
    for axis in OUTERMOST:
        degree = degrees.get(axis)
        if degree is not None:
            between = gcd(degree, slices)
            slices //= between
            parts[axis] = (between, degree // between)
    return parts


def exchange(scenario: Scenario, between: int) -> Iterator[Piece]:
    """How context ranks exchange keys. GPUs pass them around a ring; on TPUs some models must gather them at once."""
    kind = scenario.plan.switches.cp_kind
    if not on_tpu(scenario.system):
        yield Say("context_parallel_strategy", "ring", "plan.cp_kind")
        if kind != "ring":
            yield Lose("plan.cp_kind", "heads are exchanged for sequence on TPUs only: written as a ring")
        return
    why = _no_ring(scenario) if kind == "ring" else _no_ulysses(scenario, between)
    if why:
        yield Say("context_parallel_strategy", "all_gather")
        yield Lose("plan.cp_kind", f"{why}: keys are gathered at once")
        return
    yield Say("context_parallel_strategy", "ring" if kind == "ring" else "ulysses", "plan.cp_kind")
    yield Say("use_tokamax_splash", True)
    if kind != "ring":
        yield Say("context_parallel_load_balance", False)


def _no_ring(scenario: Scenario) -> str:
    work, cp = training(scenario).workload, scenario.plan.mesh.cp
    latent = any(isinstance(block.mixer, LatentAttention) for block in scenario.model.blocks)
    if cp % 2 or work.seq % (cp * cp):
        return f"a ring takes an even number of ranks, and sequences that {cp} squared divides"
    if scenario.model.mtp or (latent and work.packed):
        return "a ring takes no prediction of further tokens and no latent attention over packed documents"
    return _not_plain(scenario, LatentAttention)


def _no_ulysses(scenario: Scenario, between: int) -> str:
    cp = scenario.plan.mesh.cp
    mixers = [block.mixer for block in scenario.model.blocks if isinstance(block.mixer, Attention)]
    if between > 1:
        return "heads are exchanged inside a slice only"
    if any(mixer.heads % cp or mixer.kv_heads % cp for mixer in mixers):
        return f"{cp} ranks do not divide the heads"
    return _not_plain(scenario)


def _not_plain(scenario: Scenario, *also: type) -> str:
    """What an exchange by TPU kernels does not take: windows, sinks, other mixers, attention that is not fused."""
    if decisions_of(scenario)["plan.attention"] != "flash":
        return "the exchange is part of the fused kernel"
    for block in scenario.model.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention) and (mixer.window or mixer.sinks):
            return "windows and sinks are not exchanged"
        if not isinstance(mixer, (Attention, *also)):
            return "this kind of attention is not exchanged"
    return ""


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """Equal stages, repeated in a circle for virtual ones; layers that do not divide stay outside."""
    plan, placement = scenario.plan, scenario.placement
    pp, chunks = plan.mesh.pp, plan.schedule.chunks
    if pp == 1:
        return
    layers = pipeline_layers(scenario.model)
    if layers < pp:
        raise refusal(str(pp), f"at most {layers}, a layer for each stage", path="plan.pp")
    if layers < pp * chunks:
        chunks = 1
        yield Lose("plan.schedule.chunks", f"{layers} layers are too few: written without repeats")
    layers_each = layers // (pp * chunks)
    inner = layers_each * pp * chunks
    yield Say("num_layers_per_pipeline_stage", layers_each, "plan.placement", "plan.schedule.chunks")
    yield Say("num_pipeline_repeats", chunks, "plan.schedule.chunks")
    yield Say("pipeline_parallel_layers", inner, "plan.placement")
    if placement != (layers_each,) * (pp * chunks):
        outside = scenario.model.layers - inner
        why = f"stages hold equally many layers: written with {layers_each} in each"
        yield Lose("plan.placement", why + (f", and {outside} before or after the pipeline" if outside else ""))
    why = "a scan over stages and its derivative: all forwards, then all backwards, in the memory that takes"
    yield Fixed("plan.schedule.name", "gpipe", why)


def pipeline_layers(model: ModelSpec) -> int:
    """The layers a pipeline may hold: DeepSeek's dense ones come before it."""
    if not MODELS_NAMED.get(model.id, "").startswith(("deepseek", "kimi")):
        return model.layers
    return sum(not isinstance(model.blocks[index].ffn, Mlp) for index in model.order)


def write(scenario: Scenario) -> Export:
    """maxtext.yml and the launch scripts: one process for each host."""
    ledger = account_run(ID, scenario, _pieces(scenario))
    note = comment((f"devices: two for each chip, the second on axis {second(scenario)}",)) if second(scenario) else ""
    return export_run(ID, scenario, ledger, {FILE: note + yaml_text(ledger.options)}, _launch(scenario))


def _launch(scenario: Scenario) -> NodeCommand | Files:
    """One process for each host: on TPUs run the script on every host of the slice; elsewhere JAX is told who leads.

    What comes after the file's name starts a short run on made-up data; words given to the script stand above it.
    """
    words = ("python3", "-m", "maxtext.trainers.pre_train.train", FILE, *RUN)
    if on_tpu(scenario.system):
        flags = {"LIBTPU_INIT_ARGS": LIBTPU}
        setup = tuple(every_host(scenario))
        alone = NodeCommand(words=words, per_chip=False, rendezvous=False, setup=setup, environment=flags, tail=OUTPUT)
        return {ON_NODE: on_node(scenario, alone, options(ID).title)}
    flags = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true", **POOL}
    return NodeCommand(words=words, per_chip=False, environment=flags, setup=(COORDINATOR,), tail=OUTPUT)


def every_host(scenario: Scenario) -> Iterator[str]:
    """How a script reaches every host of a slice: by gcloud, or by xpk on a cluster."""
    word, share_each = SLICES.get(scenario.system.chip.id, ("TYPE", "1"))
    kind = f"{word}-{scenario.system.chips * int(share_each)}" if word != "TYPE" else word
    yield "# Run this on every host of the slice; JAX finds the others by itself. From outside, in this folder:"
    yield "#   gcloud compute tpus tpu-vm scp --recurse . $TPU:run --zone=$ZONE --worker=all"
    yield "#   gcloud compute tpus tpu-vm ssh $TPU --zone=$ZONE --worker=all --command='bash run/launch.sh'"
    yield f"#   xpk workload create --cluster=$CLUSTER --workload=run --tpu-type={kind} \\"
    yield "#     --base-docker-image=$IMAGE --script-dir=. --command='bash launch.sh'"


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield Say("base_config", "base.yml")
    yield Say("hardware", "tpu" if on_tpu(scenario.system) else "gpu")
    for part in (_model, batch, _work, mesh, pipeline, _recompute, _formats):
        yield from part(scenario)
    flash = "flash" if on_tpu(scenario.system) else "cudnn_flash_te"
    is_flash = decisions_of(scenario)["plan.attention"] == "flash"
    yield Say("attention", flash if is_flash else "dot_product", "plan.attention")
    yield from habits(ID, "switches")


def _model(scenario: Scenario) -> Iterator[Piece]:
    model = scenario.model
    name = _name(model)
    if name is not None:
        yield Say("model_name", name, "model.*")
        if name in VOCABULARIES and VOCABULARIES[name] != model.vocab:
            yield Lose("model.vocab", f"its file has {VOCABULARIES[name]}")
        if model.mtp is not None:
            yield Say("mtp_num_layers", model.mtp.depth, "model.mtp*")
        if model.vision is not None:
            yield Lose("model.vision*", "the image encoder is not trained in this run")
        return
    block = plain_block(model)
    if block is None:
        yield Lose("model.*", "MaxText has no such model by name, and its blocks are not those of Llama or Mixtral")
        return
    mixer, ffn = block
    yield Say("decoder_block", "llama2" if isinstance(ffn, Mlp) else "mixtral", "model.*")
    sizes = plain_sizes(model, mixer, ffn)
    dims: JsonObject = {option: sizes[name] for name, option in option_names(ID, "dims").items()}
    if isinstance(ffn, Moe):
        dims |= {"base_moe_mlp_dim": ffn.hidden, "num_experts": ffn.experts, "num_experts_per_tok": ffn.topk}
    for option, value in dims.items():
        yield Say(option, value, "model.*")
    numerics = numerics_of(model)
    if numerics.rotary_base is not None:
        yield Say("rope_max_timescale", int(numerics.rotary_base))
    if numerics.norm_eps is not None:
        yield Say("normalization_layer_epsilon", numerics.norm_eps)
    yield from habits(ID, "numerics")
    if numerics.router is not None:
        if numerics.router.aux_loss is not None:
            yield Say("load_balance_loss_weight", numerics.router.aux_loss)
        if replace(numerics.router, aux_loss=None, normalized=True) != Router(score="softmax", normalized=True):
            yield Lose("model.numerics.router.*", "experts are scored by a softmax, as Mixtral's")
        elif numerics.router.normalized is False:
            yield Lose("model.numerics.router.normalized", "weights of the picked experts add up to one")
    yield from unknown_losses(model)
    yield Lose("model.context", "dimensions say nothing of the context a model was made for")


def _name(model: ModelSpec) -> str | None:
    is_known = model.id in MODELS_NAMED and model.id in MODELS and MODELS[model.id] == model
    return MODELS_NAMED[model.id] if is_known else None


def _work(scenario: Scenario) -> Iterator[Piece]:
    work, name = training(scenario).workload, _name(scenario.model)
    yield from say_options(ID, "packed", decisions_of(scenario))
    yield from habits(ID, "work")
    if work.packed and not on_tpu(scenario.system):
        yield Say("max_segments_per_seq", SEGMENTS)
    kind = OPTIMIZERS.get(work.optimizer.name)
    if kind == "muon" and not (name.startswith(MUON) if name else not has_experts(scenario.model)):
        yield Lose("workload.optimizer.name", "Muon is not let loose on blocks of this kind: written as adamw")
        kind = None
    is_own = FIXED_OPTIMIZER.get(name or "")
    if is_own and kind != "adamw":
        yield Lose("workload.optimizer.name", f"the model's own file says {is_own}")
    yield Say("opt_type", is_own or kind or "adamw", *(["workload.optimizer.name"] if kind else []))


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    """The policy that recomputes the plan's parts, or the first that covers them."""
    offload = scenario.plan.offload
    cover = same_everywhere(scenario)
    yield from fallback_losses(scenario, cover, "one policy for all layers")
    name = policy_of(cover.kind, frozenset(cover.parts), has_experts(scenario.model))
    kind, parts = POLICIES[name][0], parts_of(name, has_experts(scenario.model))
    if cover.kind == "none":
        why = f"every layer stands in a checkpoint, and remat_policy none keeps nothing: written as {name}"
        yield Lose("plan.recompute.kind", why)
    elif cover.kind == "selective" and not (kind == "selective" and parts == tuple(sorted(cover.parts))):
        yield Lose("plan.recompute.parts", f"no policy recomputes just these: written as {name}, which covers them")
        if name == "full":
            yield Lose("plan.recompute.kind", "no policy recomputes just these parts: written as full")
    offload_policy = {"minimal": "minimal_offloaded", "full": "custom"}.get(name) if offload.activations == 1 else None
    if offload_policy == "custom":
        yield Say(INPUT, "offload", "plan.offload.activations")
    paths = ["plan.recompute.kind", "plan.recompute.parts", "plan.recompute.layers"]
    paths += ["plan.offload.activations"] if offload_policy else []
    yield Say("remat_policy", offload_policy or name, *paths)
    yield from habits(ID, "recompute")
    if offload.optimizer == 1:
        yield Say("optimizer_memory_host_offload", True, "plan.offload.optimizer")


def policy_of(kind: str, parts: frozenset[str], experts: bool) -> str:
    """The policy that recomputes least of those that cover a kind with its parts.

    >>> policy_of("selective", frozenset({"attention"}), False), policy_of("selective", frozenset({"mlp"}), False)
    ('minimal', 'save_dot_with_context_except_mlp')
    >>> policy_of("selective", frozenset({"latent-up"}), True), policy_of("none", frozenset(), False)
    ('full', 'minimal_with_context')
    """
    if kind == "full":
        return "full"
    wanted_names = parts if kind == "selective" else frozenset()
    for name, (means, _) in POLICIES.items():
        policy_parts = parts_of(name, experts)
        covered_parts = {*policy_parts, "activation"} if "mlp" in policy_parts else set(policy_parts)
        if means == "selective" and wanted_names <= covered_parts | ({"moe"} if not experts else set()):
            return name
    return "full"


def _formats(scenario: Scenario) -> Iterator[Piece]:
    """Weights rest in weight_dtype and are cast to dtype for every product: fp32 weights are the master copy."""
    precision, work = scenario.plan.precision, training(scenario).workload
    weight_format, states = precision.weights.id, work.optimizer.states.id
    without_master = weight_format != "fp32" and work.optimizer.master is None
    yield Say("dtype", LONG_FORMATS.get(precision.activations.id, "bfloat16"), "plan.precision.activations")
    stored_format = LONG_FORMATS.get(weight_format, "bfloat16") if without_master else "float32"
    yield Say("weight_dtype", stored_format, "plan.precision.weights", "workload.optimizer.master")
    if precision.activations.id not in LONG_FORMATS or precision.activations.id != weight_format:
        why = "weights are used in the format of activations"
        yield from lose(why, "plan.precision.weights", "plan.precision.activations")
    master = work.optimizer.master.id if work.optimizer.master else "none"
    if not without_master and master != ("none" if weight_format == "fp32" else "fp32"):
        yield Lose("workload.optimizer.master", "the optimizer updates the weights as they rest: fp32, or none beside")
    format_kept = next((name for name, word in LONG_FORMATS.items() if word == stored_format), "fp32")
    yield Fixed("workload.optimizer.states", format_kept, "states have the format of weight_dtype")
    if states == format_kept:
        yield Say("mu_dtype", stored_format, "workload.optimizer.states")
    yield from say_options(ID, "gradients", decisions_of(scenario))
    yield from _narrow(scenario)


def _narrow(scenario: Scenario) -> Iterator[Piece]:
    """Products in a narrow format: Transformer Engine's recipes on GPUs, qwix's on TPUs."""
    precision, decisions = scenario.plan.precision, decisions_of(scenario)
    known_words = ON_TPU if on_tpu(scenario.system) else ON_GPU
    word = known_words.get((precision.compute.id, decisions.get("plan.precision.scaling", "")), "")
    yield Say("quantization", word, *(["plan.precision.compute", "plan.precision.scaling"] if word else []))
    if word in BY_QWIX:
        yield Say("use_qwix_quantization", True)
    formats = ", ".join(f"{name} by {scale}" for name, scale in known_words)
    yield Fixed("plan.precision.compute", precision.weights.id, f"products are in dtype, or {formats}")
    yield Lose("plan.precision.scaling", f"narrow products are {formats}") if not word else Say("quantization", word)
