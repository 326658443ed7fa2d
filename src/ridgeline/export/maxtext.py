"""Turn a Scenario into MaxText's YAML (what differs from its base.yml), and such a file back into settings.

MaxText's mesh is data x stage x fsdp x context x tensor x expert, each axis split into a part between slices (dcn) and
one inside (ici). Weights are split over fsdp, context and expert; experts take ranks of data parallelism, so

    dp = data * fsdp * expert        shard_degree = fsdp * context * expert
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

from ridgeline.export.decisions import decisions_of, has_experts
from ridgeline.export.launch import ON_NODE, Command, comment, header, nodes_of, scripts
from ridgeline.export.ledger import Fixed, Lose, Piece, Say, exported, gather
from ridgeline.export.maxtext_read import MODELS_NAMED, OPTIMIZERS, POLICIES, read, recognises
from ridgeline.export.options import options
from ridgeline.export.target import Export, Target
from ridgeline.hardware.system import System
from ridgeline.models.load import MODELS
from ridgeline.models.spec import Attention, Mlp, ModelSpec, Moe, Norm
from ridgeline.plan.engine import ENGINES, OVERLAPS
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train

VERSION = options("maxtext").version
FILE = "maxtext.yml"
OUTERMOST = ("pipeline", "data", "fsdp", "expert", "context", "tensor", "tensor_sequence")
LONG = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
XLA = "the compiler arranges it"


def write(scenario: Scenario) -> Export:
    """maxtext.yml and the launch scripts: one process for each host."""
    ledger = gather(decisions_of(scenario), _pieces(scenario))
    title = f"MaxText {VERSION}"
    body = "".join(f"{key}: {_yaml(value)}\n" for key, value in ledger.options.items())
    words = ("python3", "-m", "maxtext.trainers.pre_train.train", FILE, "run_name=ridgeline")
    flags = {} if on_tpu(scenario.system) else {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}
    command = Command(words=words, per_chip=False, environment=flags)
    return exported(
        "maxtext", {FILE: comment(header(scenario, title)) + body, **_launch(scenario, command, title)}, ledger
    )


def _launch(scenario: Scenario, command: Command, title: str) -> dict[str, str]:
    """One process for each host: on TPUs run the script on every host of the slice; elsewhere JAX is told who leads."""
    made = scripts(scenario, command, title)
    if on_tpu(scenario.system):
        return {ON_NODE: made[ON_NODE]}
    told = 'export JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT" NNODES NODE_RANK\n'
    return made | {ON_NODE: made[ON_NODE].replace('\ncd "$(dirname', f'{told}\ncd "$(dirname', 1)}


def on_tpu(system: System) -> bool:
    """Whether the chips are TPUs; everything else MaxText calls a gpu."""
    return system.chip.id.startswith("tpu")


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_yaml(part) for part in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield Say("base_config", "base.yml")
    yield Say("hardware", "tpu" if on_tpu(scenario.system) else "gpu")
    for part in (_model, _batch, _mesh, _pipeline, _recompute, _formats, _switches):
        yield from part(scenario)


def _model(scenario: Scenario) -> Iterator[Piece]:
    model = scenario.model
    name = MODELS_NAMED.get(model.id)
    if name is not None and model.id in MODELS and MODELS[model.id] == model:
        yield Say("model_name", name, "model.*")
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
    dims: dict[str, Any] = {
        "base_emb_dim": model.hidden,
        "base_num_decoder_layers": model.layers,
        "base_num_query_heads": mixer.heads,
        "base_num_kv_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "base_mlp_dim": ffn.hidden,
        "vocab_size": model.vocab,
        "logits_via_embedding": model.embedding.tied,
    }
    if isinstance(ffn, Moe):
        dims |= {"base_moe_mlp_dim": ffn.hidden, "num_experts": ffn.experts, "num_experts_per_tok": ffn.topk}
    for option, value in dims.items():
        yield Say(option, value, "model.*")
    yield Lose("model.context", "dimensions say nothing of the context a model was made for")


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
    usual = (block.norm, block.norms, block.parallel, block.extra) == (Norm(), 2, False, 0)
    return (mixer, ffn) if same and usual else None


def _batch(scenario: Scenario) -> Iterator[Piece]:
    """A pipeline cuts its microbatches out of one batch of all chips; without one gradients are accumulated."""
    work, plan = scenario.workload, scenario.plan
    assert isinstance(work, Train)
    count, chips = scenario.microbatches, scenario.system.chips
    yield Say("max_target_length", work.seq, "workload.seq")
    piped = plan.mesh.pp > 1
    steps = 1 if piped else count
    yield Say("per_device_batch_size", work.sequences / steps / chips, "workload.global_batch", "plan.microbatch")
    yield Say("gradient_accumulation_steps", steps, "workload.global_batch", "plan.microbatch")
    if piped:
        yield Say("num_pipeline_microbatches", count, "plan.microbatch")
        if count % plan.mesh.pp:
            yield Lose("plan.microbatch", "the pipeline takes a multiple of its stages in microbatches")
    yield Say("packing", work.packed, "workload.packed")
    yield Fixed("workload.task", "pretrain", "all weights are updated")
    yield Fixed("workload.images", 0.0, "text only")
    yield Lose("workload.lora.*", "this trainer updates all weights")
    name = OPTIMIZERS.get(work.optimizer.name)
    yield Say("opt_type", name or "adamw", *(["workload.optimizer.name"] if name else []))
    yield Fixed("workload.optimizer.name", "adamw", "AdamW, SGD and Muon are the optimizers it knows")


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    plan, mesh = scenario.plan, scenario.plan.mesh
    degrees, lost = axes_of(scenario)
    yield from lost
    slices = scenario.system.chips // inside(scenario.system)
    paths = {
        "pipeline": ("plan.pp",),
        "data": ("plan.dp", "plan.shard_degree", "plan.shard", "system.chips"),
        "fsdp": ("plan.dp", "plan.shard_degree", "plan.shard", "system.chips"),
        "expert": ("plan.ep", "plan.dp"),
        "context": ("plan.cp",),
        "tensor": ("plan.tp", "plan.sequence_parallel"),
        "tensor_sequence": ("plan.tp", "plan.sequence_parallel"),
    }
    for axis, (between, within) in split(degrees, slices).items():
        yield Say(f"dcn_{axis}_parallelism", between, *paths[axis])
        yield Say(f"ici_{axis}_parallelism", within, *paths[axis])
    if plan.sharding.shard == "zero1":
        yield Say("shard_optimizer_over_data", True, "plan.shard")
    if mesh.cp > 1:
        kind = {"ring": "ring", "all-to-all": "ulysses"}[plan.switches.cp_kind]
        yield Say("context_parallel_strategy", kind, "plan.cp_kind")
    yield Fixed("plan.etp", mesh.tp if has_experts(scenario.model) else 1, "the tensor axis splits experts too")
    yield Fixed("plan.moe_dispatch", "all-to-all", "tokens are exchanged with ragged all-to-all")


def axes_of(scenario: Scenario) -> tuple[dict[str, int], list[Lose]]:
    """The degree of every axis, and what could not be kept."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    shard, lost = plan.sharding.shard, []
    ep = mesh.ep
    if mesh.dp % ep:
        lost.append(Lose("plan.ep", "experts take ranks of data parallelism only"))
        ep = gcd(mesh.dp, ep)
    fsdp = 1
    if shard in ("zero2", "zero3"):
        fsdp, rest = divmod(plan.shard_degree, mesh.cp * ep)
        if rest or not fsdp or (mesh.dp // ep) % fsdp:
            lost.append(Lose("plan.shard_degree", "a shard is split over whole context and expert groups"))
            fsdp = mesh.dp // ep
    if shard == "zero2":
        lost.append(Lose("plan.shard", "gradients are sharded with the weights: written as zero3"))
    if shard in ("none", "zero1") and mesh.cp * ep > 1:
        lost.append(Lose("plan.shard", "weights are split over context and expert ranks in any case"))
    if shard == "zero1" and plan.shard_degree != mesh.dp:
        lost.append(Lose("plan.shard_degree", "the optimizer is split over all of the data axis"))
    sequence = "tensor_sequence" if plan.sequence_parallel else "tensor"
    degrees = {"pipeline": mesh.pp, "data": mesh.dp // ep // fsdp, "fsdp": fsdp, "expert": ep, "context": mesh.cp}
    return degrees | {"tensor": 1, "tensor_sequence": 1} | {sequence: mesh.tp}, lost


def inside(system: System) -> int:
    """Chips of one slice: a TPU's own network, or one node of other chips."""
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


def _pipeline(scenario: Scenario) -> Iterator[Piece]:
    plan = scenario.plan
    if plan.mesh.pp == 1:
        return
    held = scenario.placement
    if len(set(held)) == 1:
        yield Say("num_layers_per_pipeline_stage", held[0], "plan.placement", "plan.schedule.chunks")
        yield Say("num_pipeline_repeats", plan.schedule.chunks, "plan.schedule.chunks")
    else:
        yield Lose("plan.placement", "stages hold equally many layers")
        yield Lose("plan.schedule.chunks", "stages hold equally many layers")
    yield Fixed("plan.schedule.name", "gpipe", "the derivative of a scan over stages: all forwards, then all backwards")


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    recompute, offload = scenario.plan.recompute, scenario.plan.offload
    moved = "_offloaded" if offload.activations == 1 else ""
    wanted = (recompute.kind, tuple(sorted(recompute.parts)) if recompute.kind == "selective" else ())
    name = next((name for name, means in POLICIES.items() if means == wanted), None)
    if name is None:
        yield Lose("plan.recompute.parts", "no policy recomputes just these: written as minimal")
        name = "minimal"
    if moved and name == "minimal":
        name = "minimal_offloaded"
        yield Say("remat_policy", name, "plan.offload.activations")
    yield Say("remat_policy", name, "plan.recompute.kind", "plan.recompute.parts")
    yield Fixed("plan.recompute.layers", None, "one policy for all layers")
    yield Lose("plan.recompute.blocks", "one policy for all layers")
    yield Fixed("plan.offload.activations", 0.0, "only the minimal policy offloads, and then all that it keeps")
    if offload.optimizer == 1:
        yield Say("optimizer_memory_host_offload", True, "plan.offload.optimizer")
    yield Fixed("plan.offload.optimizer", 0.0, "all of the optimizer or nothing")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    """Weights rest in weight_dtype and are cast to dtype for every product: fp32 weights are the master copy."""
    precision, work, found = scenario.plan.precision, scenario.workload, decisions_of(scenario)
    assert isinstance(work, Train)
    stored, states = precision.weights.id, work.optimizer.states.id
    own = stored != "fp32" and work.optimizer.master is None
    yield Say("dtype", LONG.get(precision.activations.id, "bfloat16"), "plan.precision.activations")
    rest = LONG.get(stored, "bfloat16") if own else "float32"
    yield Say("weight_dtype", rest, "plan.precision.weights", "workload.optimizer.master")
    if precision.activations.id not in LONG or precision.activations.id != stored:
        yield Lose("plan.precision.weights", "weights are used in the format of activations")
        yield Lose("plan.precision.activations", "weights are used in the format of activations")
    master = work.optimizer.master.id if work.optimizer.master else "none"
    if not own and master != ("none" if stored == "fp32" else "fp32"):
        yield Lose("workload.optimizer.master", "the optimizer updates the weights as they rest: fp32, or none beside")
    kept = next((name for name, word in LONG.items() if word == rest), "fp32")
    yield Fixed("workload.optimizer.states", kept, "states have the format of weight_dtype")
    if states == kept:
        yield Say("mu_dtype", rest, "workload.optimizer.states")
    gradients = found["plan.precision.gradients"]
    if gradients in LONG:
        yield Say("grad_dtype", LONG[gradients], "plan.precision.gradients")
    else:
        yield Lose("plan.precision.gradients", "gradients are float32, bfloat16 or float16")
    compute = precision.compute.id
    word = {"fp8-e4m3": "fp8", "int8": "int8"}.get(compute, "")
    yield Say("quantization", word, *(["plan.precision.compute"] if word else []))
    yield Fixed("plan.precision.compute", stored, "products are in dtype, fp8 or int8")
    yield Fixed("plan.precision.scaling", "tensor", "one scale for a tensor")


def _switches(scenario: Scenario) -> Iterator[Piece]:
    found = decisions_of(scenario)
    flash = "flash" if on_tpu(scenario.system) else "cudnn_flash_te"
    yield Say("attention", flash if found["plan.attention"] == "flash" else "dot_product", "plan.attention")
    yield Fixed("plan.engine", "maxtext", "what runs it is MaxText")
    yield Fixed("plan.graph", "none", "one compiled program for a step")
    yield Fixed("plan.compiled", True, "XLA compiles the whole step")
    yield Fixed("plan.launch_blocking", False, "one compiled program for a step")
    for name in OVERLAPS:
        yield Fixed(f"plan.overlap.{name}", name in ENGINES["maxtext"].overlaps, XLA)


TARGET = Target(id="maxtext", write=write, read=read, recognises=recognises)
