"""Turn what a row says about recompute and offload into a plan's `recompute` and `offload`.

A cell names what a software recomputes (Megatron's modules) or what it keeps (MaxText's policies, where all else is
recomputed). A plan recomputes whole parts of a layer, so some cells fit it only roughly; each such fit is noted.

Turn a scenario whose row leaves open what saves memory into the least of it with which the run fits.

The run happened, so it fitted. Where it does not fit by the memory model as the row stands, what the row does not say
must have been done, in this order and only as far as the engine can be asked for it:

    recompute   norms and activations, then attention with its projections, then whole layers; a selective recompute
                without detail stays selective
    sharding    optimizer states (zero1), where the row's sharding is blank
    experts     split over tensor ranks too (etp = tp, as Megatron does unless told otherwise)

Where a run without pipeline stages does not state its microbatch, it is the largest that fits: whoever publishes a
rate has raised it until memory was full, and nothing there asks for small ones.

Nothing is changed where even that does not fit, or where the chip's memory is not published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells, Unusable
from ridgeline.calibrate.truth.row_habits import of_simulator
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import MissingNumber
from ridgeline.lowering.program import lower
from ridgeline.models.spec import Moe
from ridgeline.plan.plan import Plan, Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim import peak_memory

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
    """The scenario, with what its row leaves open and it would not fit without."""
    candidate = scenario
    for amend in (_as_stated, _states_sharded, _experts_split):
        amendment = amend(candidate)
        if amendment is candidate and amend is not _as_stated:
            continue
        candidate = amendment
        fitting_scenario = next((variant for variant in (candidate, *_recomputing(candidate)) if _fits(variant)), None)
        if fitting_scenario is not None:
            return _largest_microbatch(fitting_scenario)
    return scenario


def _largest_microbatch(scenario: Scenario) -> Scenario:
    """The scenario with its microbatch doubled as often as batch and memory allow, where the row has none and no
    pipeline asks for small ones."""
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


def _as_stated(scenario: Scenario) -> Scenario:
    return scenario


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
# Megatron's recompute_modules and their other spellings -> part of a layer; "" has no part of its own
MODULES: Mapping[str, str] = MappingProxyType(
    {
        "core_attn": "attention",
        "attention": "attention",
        "attn": "attention",
        "layernorm": "norm",
        "norm": "norm",
        "moe_act": "activation",
        "act": "activation",
        "activation": "activation",
        "mlp": "mlp",
        "moe": "moe",
        "shared_experts": "",
        "mla_up_proj": "latent-up",
    }
)
# what a software recomputes when asked for `selective` without detail
HABITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "maxtext": ("attention", "norm", "activation"),
        "paxml": ("attention", "norm", "activation"),
        "torchtitan": ("alternate",),
    }
)
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
_BLOCKS = re.compile(r"rg=full rm=block rn=(\d{1,4})")  # Megatron's arguments: full recompute of so many layers
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
    some = _BLOCKS.search(cells.text("x_recompute_detail") or cells.text("notes"))
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
    parts: set[str] = set()
    for words, tensors in (
        (r"\bqkv\b|\bqkv_proj\b", ("q", "k", "v")),
        (r"\bquery_proj\b|\bq\b", ("q",)),
        (r"\bkey_proj\b|\bk\b", ("k",)),
        (r"\bvalue_proj\b|\bv\b", ("v",)),
        (r"\bcontext\b", ("context",)),
        (r"\bout_proj\b", ("out",)),
        (r"\bmlpwi\w*\b", ("mlp",)),
    ):
        if re.search(words, detail):
            parts.update(tensors)
    return frozenset(parts)


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
    parts = ["norm"]
    if "context" not in kept:
        parts.append("attention")
    if "mlp" in kept:
        parts.append("activation")
    else:
        parts.append("moe" if cells.size("experts") else "mlp")
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
