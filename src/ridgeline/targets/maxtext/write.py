"""Turn a Scenario into MaxText's YAML (what differs from its base.yml) and the launch scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ridgeline.models.load import MODELS
from ridgeline.models.numerics import Router, numerics_of, unknown_numerics
from ridgeline.models.spec import Mlp, ModelSpec, Moe
from ridgeline.plan.engine import ENGINES, OVERLAPS
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.launch import ON_NODE, Command, comment, header, on_node, scripts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, exported, gather
from ridgeline.targets.llama_shape import plain_block
from ridgeline.targets.maxtext.names import (
    BY_QWIX,
    FIXED_OPTIMIZER,
    ID,
    INPUT,
    LONG,
    MODELS_NAMED,
    MUON,
    ON_GPU,
    ON_TPU,
    OPTIMIZERS,
    POLICIES,
    VOCABULARIES,
    parts_of,
)
from ridgeline.targets.maxtext.write_mesh import batch, mesh, on_tpu, pipeline, second
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import changed, same_everywhere
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on
from ridgeline.targets.yaml_text import yaml_text

FILE = "maxtext.yml"
RUN = ("run_name=ridgeline", "steps=50", "dataset_type=synthetic", "enable_checkpointing=false")
SEGMENTS = 32  # documents in a packed sequence that cuDNN makes room for, as in MaxText's own GPU files
XLA = "the compiler arranges it"
OUTPUT = 'base_output_directory="${OUTPUT:-$PWD/output}"'
# collectives beside compute, as the published recipes for TPUs ask for
POOL = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.94"}  # of a GPU's memory; JAX takes three quarters unless told
LIBTPU = (
    "--xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true "
    "--xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
)
# chip -> how Google names a slice: a word, and what a chip counts there
SLICES = {
    "tpu-v4": ("v4", 2),
    "tpu-v5e": ("v5litepod", 1),
    "tpu-v5p": ("v5p", 2),
    "tpu-v6e": ("v6e", 1),
}
COORDINATOR = 'export JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT" NNODES NODE_RANK'


def write(scenario: Scenario) -> Export:
    """maxtext.yml and the launch scripts: one process for each host."""
    ledger = gather(decisions_of(scenario), _pieces(scenario))
    title = options(ID).title
    head = header(scenario, title)
    if second(scenario):
        head = (*head, f"devices: two for each chip, the second on axis {second(scenario)}")
    text = comment(head) + yaml_text(ledger.options)
    return exported(ID, {FILE: text, **_launch(scenario, title)}, ledger)


def _launch(scenario: Scenario, title: str) -> dict[str, str]:
    """One process for each host: on TPUs run the script on every host of the slice; elsewhere JAX is told who leads.

    What comes after the file's name starts a short run on made-up data; words given to the script stand above it.
    """
    words = ("python3", "-m", "maxtext.trainers.pre_train.train", FILE, *RUN)
    if on_tpu(scenario.system):
        flags = {"LIBTPU_INIT_ARGS": LIBTPU}
        setup = tuple(every_host(scenario))
        alone = Command(words=words, per_chip=False, rendezvous=False, setup=setup, environment=flags, tail=OUTPUT)
        return {ON_NODE: on_node(scenario, alone, title)}
    flags = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true", **POOL}
    command = Command(words=words, per_chip=False, environment=flags, setup=(COORDINATOR,), tail=OUTPUT)
    return scripts(scenario, command, title)


def every_host(scenario: Scenario) -> Iterator[str]:
    """How a script reaches every host of a slice: by gcloud, or by xpk on a cluster."""
    word, each = SLICES.get(scenario.system.chip.id, ("TYPE", 1))
    kind = f"{word}-{scenario.system.chips * each}" if word != "TYPE" else word
    yield "# Run this on every host of the slice; JAX finds the others by itself. From outside, in this folder:"
    yield "#   gcloud compute tpus tpu-vm scp --recurse . $TPU:run --zone=$ZONE --worker=all"
    yield "#   gcloud compute tpus tpu-vm ssh $TPU --zone=$ZONE --worker=all --command='bash run/launch.sh'"
    yield f"#   xpk workload create --cluster=$CLUSTER --workload=run --tpu-type={kind} \\"
    yield "#     --base-docker-image=$IMAGE --script-dir=. --command='bash launch.sh'"


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield Say("base_config", "base.yml")
    yield Say("hardware", "tpu" if on_tpu(scenario.system) else "gpu")
    yield from runs_on(scenario, ID)
    for part in (_model, batch, _work, mesh, pipeline, _recompute, _formats, _switches):
        yield from part(scenario)


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
    yield from _numerics(model)
    yield Lose("model.context", "dimensions say nothing of the context a model was made for")


def _numerics(model: ModelSpec) -> Iterator[Piece]:
    """Rotary base and norm epsilon of a model that is spelled; its names carry their own."""
    found = numerics_of(model)
    if found.rotary_base is not None:
        yield Say("rope_max_timescale", int(found.rotary_base))
    if found.norm_eps is not None:
        yield Say("normalization_layer_epsilon", found.norm_eps)
    for name in ("rotary_scaling.*", "rotary_share", "local_rotary_base", "score_scale", "*softcap"):
        yield Lose(f"model.numerics.{name}", "a model that is spelled has Llama's or Mixtral's")
    if found.router is not None:
        if found.router.aux_loss is not None:
            yield Say("load_balance_loss_weight", found.router.aux_loss)
        if replace(found.router, aux_loss=None, normalized=True) != Router(score="softmax", normalized=True):
            yield Lose("model.numerics.router.*", "experts are scored by a softmax, as Mixtral's")
        elif found.router.normalized is False:
            yield Lose("model.numerics.router.normalized", "weights of the picked experts add up to one")
    if unknown := unknown_numerics(model):
        why = f"{', '.join(unknown)} of this model: not known; set them as its checkpoint has them"
        yield Lose("model.numerics.unknown", why, yours=True)


def _name(model: ModelSpec) -> str | None:
    """The name of a catalog model that MaxText has too."""
    known = model.id in MODELS_NAMED and model.id in MODELS and MODELS[model.id] == model
    return MODELS_NAMED[model.id] if known else None


def _work(scenario: Scenario) -> Iterator[Piece]:
    """What is trained, and by which optimizer."""
    work, name = scenario.workload, _name(scenario.model)
    assert isinstance(work, Train)
    yield Say("packing", work.packed, "workload.packed")
    yield Lose("workload.document", "how long documents are is a matter of the data")
    if work.packed and not on_tpu(scenario.system):
        yield Say("max_segments_per_seq", SEGMENTS)
    yield Fixed("workload.task", "pretrain", "all weights are updated")
    yield Fixed("workload.images", 0.0, "text only")
    yield Lose("workload.lora.*", "this trainer updates all weights")
    kind = OPTIMIZERS.get(work.optimizer.name)
    if kind == "muon" and not (name.startswith(MUON) if name else not has_experts(scenario.model)):
        yield Lose("workload.optimizer.name", "Muon is not let loose on blocks of this kind: written as adamw")
        kind = None
    own = FIXED_OPTIMIZER.get(name or "")
    if own and kind != "adamw":
        yield Lose("workload.optimizer.name", f"the model's own file says {own}")
    yield Say("opt_type", own or kind or "adamw", *(["workload.optimizer.name"] if kind else []))
    yield Fixed("workload.optimizer.name", "adamw", "AdamW, SGD and Muon are the optimizers it knows")


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    """The policy that recomputes the plan's parts, or the first that covers them."""
    offload = scenario.plan.offload
    cover = same_everywhere(scenario)
    yield from changed(scenario, cover, "one policy for all layers")
    name = policy_of(cover.kind, frozenset(cover.parts), has_experts(scenario.model))
    if cover.kind == "none":
        why = f"every layer stands in a checkpoint, and remat_policy none keeps nothing: written as {name}"
        yield Lose("plan.recompute.kind", why)
    elif cover.kind == "selective" and (
        POLICIES[name][0] != "selective" or parts_of(name, has_experts(scenario.model)) != tuple(sorted(cover.parts))
    ):
        yield Lose("plan.recompute.parts", f"no policy recomputes just these: written as {name}, which covers them")
        if name == "full":
            yield Lose("plan.recompute.kind", "no policy recomputes just these parts: written as full")
    moved = {"minimal": "minimal_offloaded", "full": "custom"}.get(name) if offload.activations == 1 else None
    if moved == "custom":
        yield Say(INPUT, "offload", "plan.offload.activations")
    said = ("plan.recompute.kind", "plan.recompute.parts", "plan.recompute.layers")
    yield Say("remat_policy", moved or name, *said, *(["plan.offload.activations"] if moved else []))
    yield Fixed("plan.offload.activations", 0.0, "policies minimal and full offload, and then all that they keep")
    if offload.optimizer == 1:
        yield Say("optimizer_memory_host_offload", True, "plan.offload.optimizer")
    yield Fixed("plan.offload.optimizer", 0.0, "all of the optimizer or nothing")


def policy_of(kind: str, parts: frozenset[str], experts: bool) -> str:
    """The policy that recomputes least of those that cover a kind with its parts.

    >>> policy_of("selective", frozenset({"attention"}), False), policy_of("selective", frozenset({"mlp"}), False)
    ('minimal', 'save_dot_with_context_except_mlp')
    >>> policy_of("selective", frozenset({"latent-up"}), True), policy_of("none", frozenset(), False)
    ('full', 'minimal_with_context')
    """
    if kind == "full":
        return "full"
    wanted = parts if kind == "selective" else frozenset()
    for name, (means, _) in POLICIES.items():
        found = parts_of(name, experts)
        covered = {*found, "activation"} if "mlp" in found else set(found)
        if means == "selective" and wanted <= covered | ({"moe"} if not experts else set()):
            return name
    return "full"


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
    yield from _narrow(scenario)


def _narrow(scenario: Scenario) -> Iterator[Piece]:
    """Products in a narrow format: Transformer Engine's recipes on GPUs, qwix's on TPUs."""
    precision, found = scenario.plan.precision, decisions_of(scenario)
    known = ON_TPU if on_tpu(scenario.system) else ON_GPU
    word = known.get((precision.compute.id, found.get("plan.precision.scaling", "")), "")
    yield Say("quantization", word, *(["plan.precision.compute", "plan.precision.scaling"] if word else []))
    if word in BY_QWIX:
        yield Say("use_qwix_quantization", True)
    formats = ", ".join(f"{name} by {scale}" for name, scale in known)
    yield Fixed("plan.precision.compute", precision.weights.id, f"products are in dtype, or {formats}")
    yield Lose("plan.precision.scaling", f"narrow products are {formats}") if not word else Say("quantization", word)


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
