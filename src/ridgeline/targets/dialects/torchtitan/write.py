"""Turn a Scenario into torchtitan's job file (TOML).

Version 0.2.2 is the last whose configuration is a file. From 0.3 on it is Python code; most options of [training],
[parallelism] and [compile] live on there as command-line flags of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.encode import toml_text
from ridgeline.models.load import MODELS
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.imports.option_reader import nest_options
from ridgeline.targets.launchers.launch import NodeCommand, account_run, export_run
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits, lose
from ridgeline.targets.option_table import say_options
from ridgeline.targets.options import LONG_FORMATS
from ridgeline.targets.recompute_fallback import fallback_losses, same_everywhere
from ridgeline.targets.tables import value_pairs, word_pairs, words
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import growing_segments

ID = "torchtitan"

# (model.name, model.flavor) -> catalog id; flavors that differ only in their attention kernel are read, not written
FLAVORS = word_pairs("torchtitan", "flavors")
# flavors that are read and not written
ALSO_FLAVORS = word_pairs("torchtitan", "also_flavors")
# flavors whose published model shares the matrix of its embedding, and whose own does not
UNTIED = {("qwen3_5", "0.8B"): "qwen3.5-0.8b", ("qwen3_5", "2B"): "qwen3.5-2b", ("qwen3_5", "4B"): "qwen3.5-4b"}
# models that the software's own tests train, as tables of dimensions
DEBUG = value_pairs("torchtitan", "debug")
SCHEDULES = words("torchtitan", "schedules")
METHODS = {"ring": "alltoall"}
# (family, recipe) -> (format, what shares a scale)
CONVERTERS = {
    ("float8", "tensorwise"): ("fp8-e4m3", "tensor"),
    ("float8", "rowwise"): ("fp8-e4m3", "row"),
    ("mx", "mxfp8_cublas"): ("mxfp8", "block"),
}
FILE = "job.toml"
NOTE = """\
# For torchtitan 0.2: later versions are configured in Python and read no job file. Words after the script's name are
# passed on. Yours: the folder with the tokenizer, and the data: c4 is streamed from the Hub; DATASET=c4_test with
# DATASET_PATH=/path/to/torchtitan/tests/assets/c4_test asks for no network.
ASSETS=${ASSETS:?the folder with the tokenizer of the model, as scripts/download_hf_assets.py of torchtitan makes it}
DATASET=${DATASET:-c4}"""
SLOW = "# float8 without compile is slower than bf16: set compile.enable = true in job.toml\n"
DATA = (
    '--model.hf_assets_path "$ASSETS" --training.dataset "$DATASET" '
    '${DATASET_PATH:+--training.dataset_path "$DATASET_PATH"}'
)
BY_OP = frozenset({"alternate", "attention", "norm", "activation"})  # what per-op recompute is no heavier than


def write(scenario: Scenario) -> Export:
    """job.toml and the launch scripts."""
    ledger = account_run(ID, scenario, pieces(scenario))
    words = ("-m", "torchtitan.train", "--job.config_file", FILE, "--training.steps", "50")
    slow = "model.converters" in ledger.options and not ledger.options["compile.enable"]
    allocator = growing_segments(scenario.system)
    command = NodeCommand(words=words, environment=allocator, before=(SLOW if slow else "") + NOTE, tail=DATA)
    return export_run(ID, scenario, ledger, {FILE: "\n" + toml_text(nest_options(ledger.options))}, command)


def pieces(scenario: Scenario) -> Iterator[Piece]:
    """What a job file says of every decision."""
    for part in (_model, _training, _data_parallel, _mesh, _pipeline, _recompute, _formats):
        yield from part(scenario)
    yield from say_options(ID, "switches", decisions_of(scenario))
    yield from habits(ID, "switches")


def flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    """The family and flavor that is this model, whatever it is called.

    >>> flavor_of(MODELS["llama3.1-8b"]), flavor_of(MODELS["gpt2"])
    (('llama3', '8B'), None)
    """
    for flavor, id in FLAVORS.items():
        entry = MODELS[id]
        if same_shape(entry, model) and entry.embedding == model.embedding and entry.norm == model.norm:
            return flavor
    return None


def same_shape(model: ModelSpec, other: ModelSpec) -> bool:
    """Whether two models have equal layers over an equal vocabulary."""
    shape = (other.hidden, other.vocab, other.blocks, other.order)
    return (model.hidden, model.vocab, model.blocks, model.order) == shape


def _model(scenario: Scenario) -> Iterator[Piece]:
    model = scenario.model
    flavor = flavor_of(model)
    if flavor is None:
        yield Lose("model.*", "no flavor is this model; register one in the model's own module and name it here")
        yield Say("model.name", "llama3")
        yield Say("model.flavor", model.id)
        return
    yield Say("model.name", flavor[0], "model.*")
    yield Say("model.flavor", flavor[1], "model.*")
    if model.mtp is not None:
        yield Lose("model.mtp*", "torchtitan trains the main layers only")
    if model.vision is not None:
        yield Lose("model.vision*", "torchtitan trains the language model only")
    if model.id in MODELS:
        yield Say("model.hf_assets_path", f"./assets/hf/{model.id}", "model.context")
    else:
        yield Lose("model.context", "a flavor says nothing of the context it was made for")


def _training(scenario: Scenario) -> Iterator[Piece]:
    """A pipeline takes its microbatches out of one local batch; without one gradients are accumulated."""
    plan = scenario.plan
    yield from say_options(ID, "batch", decisions_of(scenario))
    if plan.mesh.pp > 1:
        yield Say("training.local_batch_size", plan.microbatch * scenario.microbatches)
        yield Say("parallelism.pipeline_parallel_microbatch_size", plan.microbatch, "plan.microbatch")
    else:
        yield Say("training.local_batch_size", plan.microbatch, "plan.microbatch")
    yield from habits(ID, "training")
    yield from say_options(ID, "formats", decisions_of(scenario))
    if plan.offload.optimizer == 1:
        yield Say("training.enable_cpu_offload", True, "plan.offload.optimizer")


def _data_parallel(scenario: Scenario) -> Iterator[Piece]:
    """replicate x shard = dp; weights are split over shard x cp, so some sharding comes with context parallelism."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    shard, ranks = plan.sharding.shard, mesh.dp * mesh.cp
    paths_carried = ("plan.dp", "plan.shard", "plan.shard_degree", "system.chips")
    split = plan.shard_degree // mesh.cp if plan.shard_degree % mesh.cp == 0 else 0
    if shard == "none":
        split = 1
        if mesh.cp > 1:
            yield Lose("plan.shard", "FSDP splits weights over context ranks too")
    elif not split:
        split = mesh.dp
        yield Lose("plan.shard_degree", f"a shard is split over whole context groups of {mesh.cp}")
    yield Say("parallelism.data_parallel_shard_degree", split, *paths_carried)
    yield Say("parallelism.data_parallel_replicate_degree", ranks // (split * mesh.cp), *paths_carried)
    if shard != "none":
        keeps = "always" if shard == "zero3" else "never"
        yield Say("parallelism.fsdp_reshard_after_forward", keeps, "plan.shard")
    if shard == "zero1":
        yield Lose("plan.shard", "FSDP shards gradients with the optimizer: written as zero2")


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    mesh, switches, decisions = scenario.plan.mesh, scenario.plan.switches, decisions_of(scenario)
    yield from say_options(ID, "mesh", decisions, "plan.tp")
    yield from habits(ID, "mesh")
    if decisions.get("plan.overlap.tp") and decisions["plan.compiled"]:
        yield Say("parallelism.enable_async_tensor_parallel", True, "plan.overlap.tp")
    yield from say_options(ID, "mesh", decisions, "plan.cp")
    if mesh.cp > 1:
        yield Say("parallelism.context_parallel_rotate_method", METHODS["ring"], "plan.cp_kind")
        if switches.cp_kind != "ring":
            yield Lose("plan.cp_kind", "keys go around a ring; heads are not exchanged for sequence")
    if has_experts(scenario.model):
        yield from say_options(ID, "mesh", decisions, "plan.ep")
        if mesh.etp in (1, mesh.tp):
            yield from say_options(ID, "mesh", decisions, "plan.etp")
        else:
            yield Lose("plan.etp", f"experts are split over 1 or all {mesh.tp} tensor ranks")
        yield from say_options(ID, "experts", decisions)


def _pipeline(scenario: Scenario) -> Iterator[Piece]:
    plan = scenario.plan
    yield from say_options(ID, "mesh", decisions_of(scenario), "plan.pp")
    if plan.mesh.pp == 1:
        return
    name = SCHEDULES.get(plan.schedule.name)
    if name is None:
        yield Lose("plan.schedule.name", "torch.distributed.pipelining has no such schedule: written as 1F1B")
    yield Say("parallelism.pipeline_parallel_schedule", name or "1F1B", "plan.schedule.name")
    parts = module_names(scenario.placement)
    yield Say("parallelism.module_fqns_per_model_part", parts, "plan.placement", "plan.schedule.chunks")
    overlaps_experts = plan.schedule.name == "dualpipe-v"
    if overlaps_experts and "plan.overlap.moe" in decisions_of(scenario):
        chosen = decisions_of(scenario)["plan.overlap.moe"]
        yield Say("parallelism.pipeline_parallel_expert_parallel_overlap", chosen, "plan.overlap.moe")


def module_names(placement: tuple[int, ...]) -> list[list[str]]:
    """The modules of each virtual stage, in model order.

    >>> module_names((1, 2))
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'output']]
    """
    parts: list[list[str]] = []
    start = 0
    for layers_held in placement:
        parts.append([f"layers.{index}" for index in range(start, start + layers_held)])
        start += layers_held
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    chosen_recompute, interval = scenario.plan.recompute, one_in(scenario)
    if interval > 1:
        yield Say("activation_checkpoint.mode", "selective", "plan.recompute.kind")
        yield Say("activation_checkpoint.selective_ac_option", str(interval), "plan.recompute.layers")
        if chosen_recompute.layers != scenario.model.layers // scenario.plan.virtual_stages // interval:
            why = f"written as one layer in {interval}, which is as many in every stage, or more"
            yield Lose("plan.recompute.layers", why)
        return
    kind, lost = per_op_recompute(scenario)
    yield Say("activation_checkpoint.mode", kind, "plan.recompute.kind", "plan.recompute.layers")
    if kind == "selective":
        yield Say("activation_checkpoint.selective_ac_option", "op", "plan.recompute.parts")
    yield from lost


def per_op_recompute(scenario: Scenario) -> tuple[str, list[Lose]]:
    """One way for all layers, and what it loses; per-op recompute keeps attention and every second product."""
    cover = same_everywhere(scenario)
    kind, lost = cover.kind, list(fallback_losses(scenario, cover, "one way for all layers"))
    if kind == "selective" and not set(cover.parts) <= BY_OP:
        kind = "full"
        why = "per-op recompute keeps some of these parts: written as full"
        lost += lose(why, "plan.recompute.kind", "plan.recompute.parts")
    if kind != "selective":
        lost.append(Lose("plan.recompute.parts", f"written as {kind}, which has no parts"))
    elif set(cover.parts) != {"alternate"}:
        why = "per-op recompute keeps attention and every second product: parts = alternate"
        lost.append(Lose("plan.recompute.parts", why))
    return kind, lost


def one_in(scenario: Scenario) -> int:
    """Of how many layers one is fully recomputed, so that every stage has as many as the plan; 1 where all are.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192,
    ...     "global_batch": 8}, "plan": {"pp": 2, "recompute": {"kind": "full", "layers": [5, 0]}}})
    >>> one_in(made)
    3
    """
    chosen, placement = scenario.plan.recompute, scenario.placement
    by_layers = chosen.kind == "full" and chosen.layers is not None and chosen.rest == "none"
    if not by_layers or chosen.blocks or scenario.model.mtp:
        return 1
    counts = [chosen.layers_of(stage, layers) for stage, layers in enumerate(placement)]
    return min((layers // count for layers, count in zip(placement, counts, strict=True) if count), default=1)


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision, work = scenario.plan.precision, training(scenario).workload
    stored_format = "fp32" if precision.weights.id == "fp32" else "bf16"
    without_master = stored_format == "bf16" and work.optimizer.master is None
    paths = ("plan.precision.weights", "plan.precision.activations")
    yield Say("training.mixed_precision_param", LONG_FORMATS[stored_format], *paths)
    dtype_paths = ("workload.optimizer.master", "workload.optimizer.states")
    yield Say("training.dtype", "bfloat16" if without_master else "float32", *dtype_paths)
    yield Say("training.mixed_precision_reduce", "float32")
    states, master = work.optimizer.states.id, work.optimizer.master
    if states != ("bf16" if without_master else "fp32"):
        yield Lose("workload.optimizer.states", "states have the format of training.dtype")
    if not without_master and (master.id if master else "none") != ("none" if stored_format == "fp32" else "fp32"):
        yield Lose("workload.optimizer.master", "the optimizer updates the sharded weights, which are fp32")
    other_paths = [path for path in paths if decisions_of(scenario)[path] != stored_format]
    yield from lose("weights and activations are both bf16 or both fp32", *other_paths)
    compute, decisions = scenario.plan.precision.compute.id, decisions_of(scenario)
    scaling = decisions.get("plan.precision.scaling")
    kind = next((kind for kind, means in CONVERTERS.items() if means == (compute, scaling)), None)
    if kind is None:
        yield Fixed(
            "plan.precision.compute", stored_format, "products are bf16 or fp32, or float8 and mxfp8 by converters"
        )
        yield Lose("plan.precision.scaling", "float8 scales by tensor or row, mxfp8 by block")
        return
    family, recipe = kind
    names = [f"quantize.linear.{family}"]
    yield Say(f"quantize.linear.{family}.recipe_name", recipe, "plan.precision.compute", "plan.precision.scaling")
    if has_experts(scenario.model):
        names.append(f"quantize.grouped_mm.{family}")
        yield Say(f"quantize.grouped_mm.{family}.fqns", ["experts"])
    yield Say("model.converters", names, "plan.precision.compute")
