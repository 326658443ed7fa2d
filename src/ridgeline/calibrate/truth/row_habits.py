"""Turn a blank cell into what recipes of the row's software do on its chips, and say so.

A habit is what published recipes of an engine state wherever they state it; where they do not agree there is none, and
the plan's own default stands. In a row that is complete by its own account (`x_complete` = full) a blank switch is a
switch that was not used: habits are for rows that leave things out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.calibrate.truth.rows import WORDS, RowCells, Unusable
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import MissingNumber
from ridgeline.hardware.chip import Chip
from ridgeline.lowering.program import lower
from ridgeline.models.spec import Moe
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.plan import Plan, Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim import peak_memory

# (engine, family of chips) -> the dispatcher its recipes for experts name (Megatron-Bridge: 57 of 58 rows on Blackwell)
DISPATCHERS: Mapping[tuple[str, str], str] = MappingProxyType(
    {("megatron-bridge", "blackwell"): "hybridep"}
    | {(engine, "hopper"): "deepep" for engine in ("megatron-bridge", "nemo-automodel", "hai-llm")}
)
# engines that interleave stages of a single layer and leave one each to the embedding and the head: Llama 3, whose 126
# layers are 8 x 16 less two ("the first chunk has only the embedding, the last only the output projection")
LAYER_STAGES = frozenset({"meta-internal"})
# engines that train weights as they were loaded, in bf16 and without a master copy
PURE_BF16 = frozenset({"nemo-automodel"})
UNFUSED_UNTIL = 2023  # years of Paxml's GPU recipes without flash attention
# sources whose recompute and vocabulary come from a simulator; the runs contradict them (decisions/calibration.md)
SIMULATED = frozenset({"vtrain_single"})
SUBMITTERS = ("mlperf-nvidia", "nemo", "rocm-mlperf", "llmboost")  # engines of MLPerf entries on GPUs


def of_simulator(cells: RowCells) -> bool:
    """Whether a row's recompute and vocabulary are a simulator's inputs that its measured times rule out."""
    return cells.row.source in SIMULATED


def engine_habits(cells: RowCells, engine: str) -> JsonObject:
    """Habits of the engine that differ in a row, as the [engine] table of a scenario.

    A simulator's row on one tensor rank leaves the vocabulary as it is: there is nothing to split it by, and of a step
    the part that does not grow with layers takes as long as logits of 50257 columns do, which are unaligned.
    """
    habits: JsonObject = {}
    if of_simulator(cells) and (cells.count("tp") or 1) == 1:
        cells.note("vocabulary: not padded on one tensor rank, by how steps grow with layers")
        habits["vocab_multiple"] = 1
    if is_relative(cells):
        joined = [word for word, pattern in RELATIVE_FUSES if re.search(pattern, cells.text("attention_impl"))]
        cells.note(f"software: kernels of its relative {engine}; overlaps nothing, and fuses {', '.join(joined)} alone")
        habits |= {"overlaps": [], "fuses": joined, "exchanges": {"beside_products": False}}
    if library := attention_library(cells, engine):
        habits["kernel"] = library
    return {"engine": habits} if habits else {}


# what software that descends from a known one has fused, by the words in which its rows name kernels
RELATIVE_FUSES = (("norm", "(?i)norm|rms kernel"), ("masked-softmax", "(?i)fused"), ("optimizer", ""))
FLASH_2 = re.compile("(?i)flash[ _-]?att\\w*[ _-]?2")


def is_relative(cells: RowCells) -> bool:
    """Whether a row's software is none of the catalog, and its framework's name says what it descends from."""
    name, framework = cells.text("x_engine"), cells.text("framework").lower()
    if not name or name in ENGINES:
        return False
    own = any(re.search(pattern, name.lower()) for pattern, _ in WORDS["frameworks"])
    return not own and any(re.search(pattern, framework) for pattern, _ in WORDS["frameworks"])


def attention_library(cells: RowCells, engine: str) -> str | None:
    """FlashAttention-2 where the row names it and the engine comes with another library; None elsewhere."""
    return "flash-2" if FLASH_2.search(cells.text("attention_impl")) and ENGINES[engine].kernel == "cudnn" else None


def of_mlperf(cells: RowCells) -> bool:
    """Whether a row is an MLPerf entry."""
    return cells.row.source == "mlperf" or "mlperf" in cells.text("source").lower()


def usual_precision(cells: RowCells, engine: str, chip: Chip) -> str:
    """Of a row that states none: MLPerf entries on chips with fp8 run it, everything else bf16."""
    if engine in SUBMITTERS and of_mlperf(cells) and "fp8" in chip.peak:
        cells.note("precision = fp8: blank in the table; what MLPerf entries on such chips run")
        return "fp8"
    wide = "bf16" if "bf16" in chip.peak else "fp16"
    cells.note(f"precision = {wide}: blank in the table")
    return wide


def dispatches(cells: RowCells) -> bool:
    """Whether tokens are sent to experts: by the columns on experts, or by ranks for them where a name alone tells."""
    return bool(cells.size("experts")) or (cells.count("ep") or 1) > 1


def usual_overlap(cells: RowCells, engine: str) -> bool | None:
    """Tensor-parallel overlap of rows that NeMo ran and that count as Megatron-Core: its recipes set
    `ub_tp_comm_overlap` wherever sequences are split; None elsewhere."""
    of_nemo = re.match("nemo", cells.text("framework").lower()) and engine == "megatron-core"
    if not of_nemo or not cells.flag("sp") or (cells.count("tp") or 1) == 1 or cells.text("x_complete") == "full":
        return None
    cells.note("overlap.tp = true: blank in the table; what recipes of NeMo set")
    return True


def usual_dispatch(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """The expert dispatcher of an engine's recipes; None where they have no habit or nothing is dispatched."""
    has_dispatch = (cells.count("ep") or 1) > 1 and cells.text("x_complete") != "full"
    dispatcher = DISPATCHERS.get((engine, chip.family)) if has_dispatch else None
    if dispatcher:
        cells.note(f"moe_dispatch = {dispatcher}: blank in the table; what recipes of {engine} on {chip.family} use")
    return dispatcher


def usual_attention(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """Unfused in Paxml on GPUs until 2023, whose recipes took up cuDNN's flash attention then; None elsewhere."""
    year = cells.count("year")
    if engine != "paxml" or chip.vendor != "NVIDIA" or year is None or year > UNFUSED_UNTIL:
        return None
    why = f"blank in the table, and of {year}; {engine} on GPUs had no flash attention before"
    cells.note(f"attention = unfused: {why}")
    return "unfused"


def usual_graph(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """How much is replayed from graphs; None where recipes have no habit.

    On Blackwell, MLPerf entries that state it capture layers (17 of 25 rows), and so do Megatron-Bridge's recipes for
    experts (54 of 71, some of them whole iterations).
    """
    if chip.family != "blackwell" or cells.text("x_complete") == "full":
        return None
    entry = engine in SUBMITTERS and of_mlperf(cells)
    if entry or (engine == "megatron-bridge" and cells.size("experts")):
        cells.note(f"graph = partial: blank in the table; what recipes of {engine} on {chip.family} do")
        return "partial"
    return None


def usual_stages(cells: RowCells, engine: str, pp: int) -> JsonObject:
    """The schedule and placement of an engine that interleaves single layers; nothing where a row states its chunks."""
    layers = cells.count("layers") or 0
    if engine not in LAYER_STAGES or pp == 1 or cells.count("vpp") is not None or (layers + 2) % pp:
        return {}
    cells.note(f"schedule = interleaved: blank in the table; {engine} interleaves single layers, none at the two ends")
    chunks = (layers + 2) // pp
    return {"schedule": {"name": "interleaved", "chunks": chunks}, "placement": [0, *[1] * layers, 0]}


def usual_optimizer(cells: RowCells, engine: str) -> JsonObject:
    """The formats of optimizer states of an engine that holds no master copy; nothing for the others."""
    if engine not in PURE_BF16:
        return {}
    cells.note(f"optimizer: moments in bf16 and no master copy; {engine} trains weights as loaded")
    return {"optimizer": {"name": "adamw", "states": "bf16", "master": "none"}}


def usual_exchange(cells: RowCells, engine: str, mesh: Mapping[str, int]) -> str | None:
    """How MLPerf entries with NVIDIA's software exchange over context ranks: heads for sequence where the key-value
    heads go round, since a ring would cut their sequences into kernels of a few hundred tokens; None elsewhere."""
    heads = cells.count("kv_heads") or cells.count("heads") or 1
    ranks = mesh["tp"] * mesh["cp"]
    if mesh["cp"] == 1 or heads % ranks or engine not in SUBMITTERS[:2] or not of_mlperf(cells):
        return None
    cells.note("cp_kind = all-to-all: no column holds it; heads divide, and a ring would have too small kernels")
    return "all-to-all"


# from little to much
STEPS = (
    Recompute(kind="selective", parts=("norm", "activation")),
    Recompute(kind="selective", parts=("norm", "activation", "mixer")),
    Recompute(kind="full"),
)
BLANK_SHARD = "shard = none: blank"  # how the note on a blank sharding begins
MEANT = "means by selective"  # how the note on a selective recompute without detail ends
BLANK_MICROBATCH = "micro_batch = 1: blank"  # how the note on a blank microbatch begins
WHY = "and without it the run would not have fitted in memory"


def fitting(scenario: Scenario) -> Scenario:
    """The scenario, with what its row leaves open and it would not fit without.

    The run happened, so it fitted. Where it does not fit by the memory model as the row stands, what the row does not
    say must have been done, in this order and only as far as the engine can be asked for it:

        recompute   norms and activations, then attention with its projections, then whole layers; a selective
                    recompute without detail stays selective
        sharding    optimizer states (zero1), where the row's sharding is blank
        experts     split over tensor ranks too (etp = tp, as Megatron does unless told otherwise)

    Nothing is changed where even that does not fit, or where the chip's memory is not published.
    """
    candidates = [scenario, sharded := _states_sharded(scenario), _experts_split(sharded)]
    for candidate in {id(item): item for item in candidates}.values():
        fitting_scenario = next((variant for variant in (candidate, *_recomputing(candidate)) if _fits(variant)), None)
        if fitting_scenario is not None:
            return _largest_microbatch(fitting_scenario)
    return scenario


def _largest_microbatch(scenario: Scenario) -> Scenario:
    """The scenario with its microbatch doubled as often as batch and memory allow, where the row has none and no
    pipeline asks for small ones: whoever publishes a rate has raised it until memory was full."""
    plan, workload = scenario.plan, scenario.workload
    old_note = next((note for note in scenario.assumptions if note.startswith(BLANK_MICROBATCH)), None)
    if old_note is None or plan.mesh.pp > 1 or not isinstance(workload, Train) or workload.global_batch is None:
        return scenario
    best, size = scenario, 2
    while workload.global_batch % (plan.mesh.dp * size) == 0:
        note = f"micro_batch = {size}: blank in the table; the largest that divides the batch and fits in memory"
        candidate = _amend_plan(scenario, replace(plan, microbatch=size), old_note, note)
        if not _fits(candidate, unknown=False):
            break
        best, size = candidate, size * 2
    return best


def _experts_split(scenario: Scenario) -> Scenario:
    """Experts over the tensor ranks: no column of a table holds etp."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    experts = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    able = "etp" in scenario.engine.supports.axes and mesh.etp == 1 and mesh.tp > 1 and mesh.cp * mesh.dp % mesh.ep == 0
    if not (experts and able):
        return scenario
    note = f"etp = {mesh.tp}: no column holds it, {WHY}"
    return _amend_plan(scenario, replace(plan, mesh=replace(mesh, etp=mesh.tp)), "", note)


def _states_sharded(scenario: Scenario) -> Scenario:
    """Optimizer states over the data-parallel ranks where the row's sharding is blank."""
    old_note = next((note for note in scenario.assumptions if note.startswith(BLANK_SHARD)), None)
    plan, able = scenario.plan, scenario.engine.supports
    if old_note is None or "zero1" not in (able.pipelined_shard if plan.mesh.pp > 1 else able.shard):
        return scenario
    note = f"shard = zero1: blank in the table, {WHY}"
    return _amend_plan(scenario, replace(plan, sharding=replace(plan.sharding, shard="zero1")), old_note, note)


def _recomputing(scenario: Scenario) -> Iterator[Scenario]:
    """The scenario under ever more recompute, where its row does not say how much."""
    plan, notes = scenario.plan, scenario.assumptions
    old_note = next((note for note in notes if note.startswith((UNSTATED, SHARE_UNSTATED))), None)
    meant = next((note for note in notes if note.endswith(MEANT)), None)
    is_full = plan.recompute.kind == "full" and plan.recompute.layers is None
    if is_full or (old_note is None and meant is None):
        return
    for recompute in STEPS:
        if not _is_offered(scenario, recompute) or (old_note is None and recompute.kind == "full"):
            continue
        if plan.recompute.kind == "full" and recompute.kind != "full":
            continue
        what = recompute.kind if recompute.kind == "full" else ", ".join(recompute.parts)
        note = f"{UNSTATED} {what}: unknown in the table, and with less the run would not have fitted in memory"
        yield _amend_plan(scenario, replace(plan, recompute=recompute), old_note or meant or "", note)


def _amend_plan(scenario: Scenario, plan: Plan, old: str, told: str) -> Scenario:
    """Under another plan, with a note in place of the one it makes void."""
    notes = tuple(told if note == old else note for note in scenario.assumptions)
    return replace(scenario, plan=plan, assumptions=notes if old in scenario.assumptions else (*notes, told))


def _is_offered(scenario: Scenario, recompute: Recompute) -> bool:
    """Whether the scenario's engine can be asked for it: a kind it has, and only parts it names."""
    supports = scenario.engine.supports
    parts = {part for together in supports.selective for part in together}
    return recompute.kind in supports.recompute and (recompute.kind == "full" or parts.issuperset(recompute.parts))


def _fits(scenario: Scenario, *, unknown: bool = True) -> bool:
    """Whether its memory is enough; `unknown` where nobody publishes how much there is."""
    try:
        return peak_memory(scenario, lower(scenario, tensors=False)).headroom_bytes >= 0
    except MissingNumber:
        return unknown


KINDS = {kind: kind for kind in ("none", "selective", "full")}
MODULES: Mapping[str, str] = WORDS["recompute_modules"]
# what a software recomputes when asked for `selective` without detail
HABITS = dict.fromkeys(("maxtext", "paxml"), ("attention", "norm", "activation")) | {"torchtitan": ("alternate",)}
# the same where experts are trained with fused attention, which keeps no scores that could be recomputed instead:
# what recipes of the Megatron MoE model zoo name where they name it
EXPERT_HABITS: Mapping[str, tuple[str, ...]] = MappingProxyType({"megatron-core": ("norm", "activation")})
# what a software's recipes do when nothing is said; none for the others
UNSAID: Mapping[str, str] = MappingProxyType({"maxtext": "full", "paxml": "full", "torchtitan": "selective"})
UNSTATED = "recompute ="  # how the note on an assumed recompute begins
SHARE_UNSTATED = "recompute: every second block"  # the same where only its share of layers is assumed
UNKNOWN = ("", "blank", "unstated", "unknown", "?")
_MODULES = re.compile(r"recompute(?:_modules)?[= ]([\w+,]+)")
_POLICY = re.compile(r"remat(?:_policy)?\W+(custom\b[^;]*(?:; rest recomputed\))?|minimal\w*|qkv_proj_offloaded|full)")
# full recompute of so many layers: Megatron's arguments, and NeMo's in the environment of its MLPerf entries
_BLOCKS = re.compile(r"(?:rm=block rn=|ACM=block,? ?ACL=|method=block num_layers=)(\d{1,4})")
_OFFLOADED = re.compile(r"offload (\d+) layers")


def memory_table(cells: RowCells, engine: str) -> JsonObject:
    """The `recompute` and `offload` keys of a plan."""
    if of_simulator(cells):
        cells.note("recompute = none: stated as a simulator's input, and too fast for it")
        return {"recompute": {"kind": "none"}}
    kind = cells.word("recompute", KINDS)
    detail = cells.text("x_recompute_detail").lower()
    if detail in UNKNOWN or detail.startswith("args"):
        detail = _from_notes(cells.text("notes"))
    keeps = _saved_parts(detail)
    if kind is None:
        kind = UNSAID.get(engine, "none") if detail in UNKNOWN else "selective"
        if detail in UNKNOWN:
            cells.note(f"{UNSTATED} {kind}: unknown in the table; what recipes of {engine} usually do")
    if keeps is not None and kind != "none":
        return _policy(cells, keeps, detail)
    recompute: JsonObject = {"kind": kind}
    some = _BLOCKS.search(f"{cells.text('x_recompute_detail')} {cells.text('notes')}")
    if kind == "full" and some:
        recompute["layers"] = int(some[1])
        cells.note(f"recompute: {some[1]} layers of each stage, by its arguments")
    elif kind == "selective":
        recompute = _selective(cells, detail, engine)
    share = _offloaded_share(cells)
    return {"recompute": recompute} | ({"offload": {"activations": share}} if share else {})


def _from_notes(notes: str) -> str:
    """The detail where it stands in the notes only: `recompute_modules=...` or a remat policy."""
    match = _POLICY.search(notes) or _MODULES.search(notes)
    text = match.group(1).lower() if match else ""
    words = set(re.split(r"[+,]", text))
    return text if match and (match.re is _POLICY or words & set(MODULES)) else ""


def _selective(cells: RowCells, detail: str, engine: str) -> JsonObject:
    if engine == "fms-fsdp":
        layers = max(1, (cells.count("layers") or 2) // 2)
        cells.note(f"{SHARE_UNSTATED} ({layers} layers) assumed for selective; the share is not stated")
        return {"kind": "full", "layers": layers}
    words = [word for word in re.split(r"[+,\s]+", detail) if word]
    modules = [word for word in words if word in MODULES]
    if not modules:
        has_routing = bool(cells.count("experts")) and cells.text("x_attention") == "flash"
        parts = (EXPERT_HABITS if has_routing and engine in EXPERT_HABITS else HABITS).get(engine, ("attention",))
        extra = " and every second matrix product" if engine == "torchtitan" else ""
        cells.note(f"recompute: {', '.join(parts)}{extra}: what {engine} means by selective")
        return {"kind": "selective", "parts": list(parts)}
    unknown_words = [word for word in words if not MODULES.get(word)]
    if unknown_words:
        cells.note(f"recompute of {', '.join(unknown_words)[:80]} is left out: a plan has no such part")
    parts = tuple(dict.fromkeys(MODULES[word] for word in modules if MODULES[word]))
    return {"kind": "selective", "parts": list(parts)}


def _saved_parts(detail: str) -> frozenset[str] | None:
    """Tensors that a MaxText policy keeps besides the layer's input; None when the detail is no such policy."""
    if detail.startswith("minimal"):
        return frozenset({"q", "k", "v", "out", "mlp"})
    if detail.startswith("qkv_proj_offloaded"):
        return frozenset({"q", "k", "v"})
    if detail == "full":
        return frozenset()
    if not detail.startswith("custom"):
        return None
    kept = [tensors for words, tensors in WORDS["saved_tensors"] if re.search(words, detail)]
    return frozenset(tensor for tensors in kept for tensor in tensors)


def _policy(cells: RowCells, kept: frozenset[str], detail: str) -> JsonObject:
    """A policy that keeps some tensors and recomputes the rest, as the parts a plan can name."""
    share = 0.0
    if cells.flag("x_offload") or "offload" in detail:
        share = _input_apart(cells) if detail.startswith("qkv_proj_offloaded") else 1.0
    offload = {"offload": {"activations": share}} if share else {}
    if not kept >= {"q", "k", "v"}:
        if kept or "custom" in detail:
            cells.note(f"recompute = full: {detail[:80]!r} keeps little besides a layer's input")
        return {"recompute": {"kind": "full"}} | offload
    parts = ["norm", *(() if "context" in kept else ("attention",))]
    parts.append("activation" if "mlp" in kept else "moe" if cells.size("experts") else "mlp")
    cells.note(f"recompute: {', '.join(parts)}: what {detail[:80]!r} does not keep")
    return {"recompute": {"kind": "selective", "parts": parts}} | offload


def _input_apart(cells: RowCells) -> float:
    """Share of (q, k, v, layer input) that q, k and v are: the input stays on the chip."""
    hidden, heads = cells.count("hidden"), cells.count("heads")
    if not hidden or not heads:
        return 0.75
    wide = (heads + 2 * (cells.count("kv_heads") or heads)) * (cells.count("x_head_dim") or hidden // heads)
    return round(wide / (wide + hidden), 4)


def _offloaded_share(cells: RowCells) -> float:
    """Share of the kept activations that go to host memory."""
    if not cells.flag("x_offload"):
        return 0.0
    match, layers = _OFFLOADED.search(cells.text("notes")), cells.count("layers")
    stage_layers = max(1, (layers or 1) // (cells.count("pp") or 1))
    if match and layers:
        if int(match.group(1)) > layers:
            raise Unusable("x_offload", f"{match.group(1)} layers offloaded of {layers}")
        share = min(1.0, int(match.group(1)) / stage_layers)
        cells.note(f"offload: activations of {match.group(1)} of the {stage_layers} layers a chip holds")
        return round(share, 4)
    cells.note("offload: all kept activations; how much is not stated")
    return 1.0
