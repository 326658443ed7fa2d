"""Turn a Scenario into MindSpeed-LLM's launch script: Megatron's words where they are shared, else its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.documents import JsonObject
from ridgeline.models.numerics import numerics_of
from ridgeline.models.spec import Attention, LatentAttention, Moe
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.megatron import write as plan_words
from ridgeline.targets.dialects.megatron.names import flags_of
from ridgeline.targets.dialects.megatron.write import MODEL, arrays, precision, said_by, with_arguments
from ridgeline.targets.dialects.megatron.write_model import Writer
from ridgeline.targets.dialects.mindspeed.names import ALGORITHMS, ID, PARTS, RENAMED
from ridgeline.targets.launchers.launch import Command
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admit_options, gather, habits, lose
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import nearest, normal_recompute
from ridgeline.targets.target import Export

OFF = plan_words.OFF
EXPERTS = "--overlap-moe-expert-parallel-comm"
ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "HCCL_CONNECT_TIMEOUT": "3600",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
}


CHECKOUT = (
    "# MINDSPEED_LLM is a checkout of MindSpeed-LLM with Megatron-LM inside, as a whole path or below this folder.\n"
)
HYBRID = "pretrain_gpt.py has attention in every layer; hybrids have scripts of their own there"


def axes(scenario: Scenario) -> Iterator[Piece]:
    """Experts are cut as tensor ranks cut them, or tensor ranks hold further experts instead."""
    mesh = scenario.plan.mesh
    for piece in plan_words.axes(scenario):
        if isinstance(piece, Say) and piece.option in ("--expert-model-parallel-size", "--expert-tensor-parallel-size"):
            continue
        yield piece
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
        yield Fixed("plan.schedule.name", "1f1b", "without virtual stages")
        yield Fixed("plan.schedule.chunks", 1, "without virtual stages")
        yield Fixed("plan.placement", placement, "an even split is the default")
        return
    empty = empty_layers(scenario)
    if len(set(placement)) > 1 and not empty and name in ("interleaved", "dualpipe-v"):
        yield from lose(
            "empty layers, which fill short stages, cannot stand among the dense ones at the start",
            *paths,
            "plan.placement",
            "plan.overlap.pp",
            "plan.overlap.moe",
        )
        yield from _plain_split(scenario)
        return
    if _dual(scenario):
        yield Say("--schedules-method", "dualpipev", *paths)
        yield Say("--moe-fb-overlap", True, *paths)
        yield Fixed("plan.overlap.moe", True, "dualpipev always overlaps the exchange of experts")
        yield Fixed("plan.overlap.pp", True, "dualpipev always overlaps its sends")
    elif name == "interleaved":
        yield Say("--num-layers-per-virtual-pipeline-stage", max(placement), *paths)
    else:
        for path in (*paths, "plan.placement"):
            yield Lose(
                path,
                "schedules are 1f1b, interleaved 1f1b, and dualpipev: experts, untied embeddings, no context ranks",
            )
        yield from _plain_split(scenario)
        return
    if empty:
        yield Say("--noop-layers", ",".join(map(str, empty)), "plan.placement")
    yield Fixed("plan.placement", placement, "an even split is the default")


def _plain_split(scenario: Scenario) -> Iterator[Piece]:
    """As many layers on each rank as planned, where the schedule itself cannot be said."""
    layers_by_rank = plan_words.by_rank(scenario)
    if len(set(layers_by_rank)) > 1:
        yield Say("--num-layer-list", ",".join(map(str, layers_by_rank)))


def empty_layers(scenario: Scenario) -> tuple[int, ...]:
    """Numbers of the layers that do nothing, so that every virtual stage counts as many as the fullest."""
    plan = scenario.plan
    if plan.mesh.pp == 1 or plan.schedule.name not in ("interleaved", "dualpipe-v"):
        return ()
    if plan.schedule.name == "dualpipe-v" and not _dual(scenario):
        return ()
    largest = max(scenario.placement)
    dense = next((index for index, kind in enumerate(scenario.model.order) if _sparse(scenario, kind)), 0)
    empty_slots = [
        stage * largest + slot
        for stage, layers_held in enumerate(scenario.placement)
        for slot in range(layers_held, largest)
    ]
    return () if empty_slots and empty_slots[0] < dense else tuple(empty_slots)


def _sparse(scenario: Scenario, kind: int) -> bool:
    return isinstance(scenario.model.blocks[kind].ffn, Moe)


def optimizer(scenario: Scenario) -> Iterator[Piece]:
    """States in fp32, or in bf16 for adam; no copy of weights in another format."""
    work = training(scenario).workload
    for piece in plan_words.optimizer(scenario):
        about = getattr(piece, "path", "") or " ".join(getattr(piece, "paths", ()))
        if "states" not in about and "master" not in about:
            yield piece
    if work.optimizer.states.id == "bf16":
        yield Say("--o2-optimizer", True, "workload.optimizer.states")
    yield Fixed("workload.optimizer.states", "fp32", "fp32, or bf16 on request")
    master = "none" if scenario.plan.precision.weights.id == "fp32" else "fp32"
    yield Fixed("workload.optimizer.master", master, "fp32, and no copy of weights that are fp32 already")


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
    yield from plan_words.recompute_losses(
        scenario, written, "one number for all stages; attention, or norm, activation, latent"
    )


def offload(scenario: Scenario) -> Iterator[Piece]:
    """All optimizer states or none; activations are swapped by module, which a share does not say."""
    share = scenario.plan.offload
    yield from habits(ID, "offload")
    if share.optimizer == 1.0 and scenario.plan.sharding.shard != "none":
        yield Say("--swap-optimizer", True, "plan.offload.optimizer")
        yield Fixed("plan.overlap.offload", False, "states are swapped before and after the update")
    elif share.optimizer:
        yield Lose("plan.offload.optimizer", "all states, with the distributed optimizer")


def switches(scenario: Scenario) -> Iterator[Piece]:
    """Flash attention on request; how context ranks exchange."""
    pieces_said = (*plan_words.switches(scenario), *plan_words.overlaps(scenario))
    overlaps_experts = _dual(scenario) or any(getattr(piece, "option", "") == EXPERTS for piece in pieces_said)
    for piece in pieces_said:
        option = getattr(piece, "option", "")
        if option == "--attention-backend":
            continue
        if isinstance(piece, Fixed) and piece.path == "plan.overlap.cp":
            continue
        if getattr(piece, "path", "") in ("plan.overlap.moe", "plan.overlap.pp") and _dual(scenario):
            continue  # said by the schedule
        if overlaps_experts and option in ("--overlap-grad-reduce", "--overlap-param-gather"):
            for path in getattr(piece, "paths", ()):
                yield Lose(path, "not together with the overlap of expert exchange")
            continue
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


NORMALIZED = "model.numerics.router.normalized"
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
            yield from _dense_first(flags_of(str(value), scenario.model.layers), paths)
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


def _dense_first(flags: tuple[bool, ...], paths: tuple[str, ...]) -> Iterator[Piece]:
    """Experts in every layer after the first few."""
    dense = flags.index(True)
    if all(flags[dense:]):
        yield Say("--first-k-dense-replace", dense, *paths)
        yield Say("--moe-layer-freq", 1, *paths)
    else:
        yield from lose("dense layers first, then experts in every layer", *paths, "model.blocks.*.ffn.*")


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
    command = Command(
        words=(),
        environment=ENVIRONMENT | {name: value for name, value in decisions.options.items() if name.isupper()},
        before=CHECKOUT + arrays(decisions.options, run_options(scenario), said_by(model)),
        tail='"${MINDSPEED_LLM:-MindSpeed-LLM}/pretrain_gpt.py" "${MODEL_ARGS[@]}" "${PLAN_ARGS[@]}" "${RUN_ARGS[@]}"',
    )
    return with_arguments(ID, scenario, command, decisions)
