"""Turn what a row says about recompute and offload into a plan's `recompute` and `offload`.

A cell names what a software recomputes (Megatron's modules) or what it keeps (MaxText's policies, where all else is
recomputed). A plan recomputes whole parts of a layer, so some cells fit it only roughly; each such fit is noted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.calibrate.truth.csv_cells import RowCells, Unusable
from ridgeline.calibrate.truth.row_habits import of_simulator

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


def memory_table(cells: RowCells, engine: str) -> dict[str, Any]:
    """The `recompute` and `offload` keys of a plan."""
    if of_simulator(cells):
        cells.note("recompute = none: stated as a simulator's input, and too fast for it")
        return {"recompute": {"kind": "none"}}
    kind = cells.word("recompute", KINDS)
    detail = cells.text("x_recompute_detail").lower()
    if detail in UNKNOWN or detail.startswith("args"):
        detail = _from_notes(cells.text("notes"))
    keeps = _kept(detail)
    if kind is None:
        kind = UNSAID.get(engine, "none") if detail in UNKNOWN else "selective"
        if detail in UNKNOWN:
            cells.note(f"{UNSTATED} {kind}: unknown in the table; what recipes of {engine} usually do")
    if keeps is not None and kind != "none":
        return _policy(cells, keeps, detail)
    recompute: dict[str, Any] = {"kind": kind}
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
    found = _POLICY.search(notes) or _MODULES.search(notes)
    text = found.group(1).lower() if found else ""
    words = set(re.split(r"[+,]", text))
    return text if found and (found.re is _POLICY or words & set(MODULES)) else ""


def _selective(cells: RowCells, detail: str, engine: str) -> dict[str, Any]:
    if engine == "fms-fsdp":
        layers = max(1, (cells.count("layers") or 2) // 2)
        cells.note(f"{SHARE_UNSTATED} ({layers} layers) assumed for selective; the share is not stated")
        return {"kind": "full", "layers": layers}
    words = [word for word in re.split(r"[+,\s]+", detail) if word]
    known = [word for word in words if word in MODULES]
    if not known:
        routed = bool(cells.count("experts")) and cells.text("x_attention") == "flash"
        parts = (EXPERT_HABITS if routed and engine in EXPERT_HABITS else HABITS).get(engine, ("attention",))
        extra = " and every second matrix product" if engine == "torchtitan" else ""
        cells.note(f"recompute: {', '.join(parts)}{extra}: what {engine} means by selective")
        return {"kind": "selective", "parts": list(parts)}
    apart = [word for word in words if not MODULES.get(word)]
    if apart:
        cells.note(f"recompute of {', '.join(apart)[:80]} is left out: a plan has no such part")
    parts = tuple(dict.fromkeys(MODULES[word] for word in known if MODULES[word]))
    return {"kind": "selective", "parts": list(parts)}


def _kept(detail: str) -> frozenset[str] | None:
    """Tensors that a MaxText policy keeps besides the layer's input; None when the detail is no such policy."""
    if detail.startswith("minimal"):
        return frozenset({"q", "k", "v", "out", "mlp"})
    if detail.startswith("qkv_proj_offloaded"):
        return frozenset({"q", "k", "v"})
    if detail == "full":
        return frozenset()
    if not detail.startswith("custom"):
        return None
    kept: set[str] = set()
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
            kept.update(tensors)
    return frozenset(kept)


def _policy(cells: RowCells, kept: frozenset[str], detail: str) -> dict[str, Any]:
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
    found, layers = _OFFLOADED.search(cells.text("notes")), cells.count("layers")
    held = max(1, (layers or 1) // (cells.count("pp") or 1))
    if found and layers:
        if int(found.group(1)) > layers:
            raise Unusable("x_offload", f"{found.group(1)} layers offloaded of {layers}")
        share = min(1.0, int(found.group(1)) / held)
        cells.note(f"offload: activations of {found.group(1)} of the {held} layers a chip holds")
        return round(share, 4)
    cells.note("offload: all kept activations; how much is not stated")
    return 1.0
