"""Turn a ModelSpec into the table of dimensions that describes it, and a table into the catalog entry it equals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.models.load import MODELS
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import Block, ModelSpec, Norm


def dimensions(spec: ModelSpec) -> dict[str, Any]:
    """The table `ridgeline.model` reads back as the same model; labels and an image encoder are left out.

    >>> import ridgeline
    >>> ridgeline.model(dimensions(ridgeline.model("llama3-8b"))).blocks == ridgeline.model("llama3-8b").blocks
    True
    """
    embedding = spec.embedding
    table: dict[str, Any] = {"hidden": spec.hidden, "layers": spec.layers, "vocab": spec.vocab}
    rest = {
        "context": spec.context,
        "tied": embedding.tied,
        "positions": embedding.positions,
        "embedding_width": embedding.width,
        "head_bias": embedding.head_bias,
    }
    table |= {key: value for key, value in rest.items() if value}
    if embedding.norm is not None:
        table["embedding_norm"] = _norm(embedding.norm)
    if spec.norm is not None and spec.norm != spec.blocks[spec.order[-1]].norm:
        table["final_norm"] = _norm(spec.norm)
    blocks = {f"b{index}": block for index, block in enumerate(spec.blocks)}
    if spec.mtp is not None:
        table["mtp"] = spec.mtp.depth
        if spec.mtp.block != spec.blocks[spec.order[-1]]:
            blocks["ahead"] = spec.mtp.block
            table["mtp_block"] = "ahead"
    if len(blocks) == 1:
        return table | _parts(spec.blocks[0])
    table["pattern"] = list(runs(spec.order))
    table["block"] = {name: _parts(block) for name, block in blocks.items()}
    return table


def known_as(table: Mapping[str, Any], unsure: Iterable[str] = (), prefer: str = "") -> str | Mapping[str, Any]:
    """The catalog id of the model a table of dimensions describes, or the table itself when no entry equals it.

    Keys named as `unsure` were not stated by the source: an entry may differ in them, and then fills them in. Of
    several entries the preferred one is taken, or the one with the shortest id.
    """
    try:
        spec = load_model(table)
    except InputError:
        return table  # told by whoever builds the scenario
    unsure = tuple(unsure)
    fits = [id for id in MODELS if _could_be(id, spec, unsure) and _equal(MODELS[id], spec, unsure)]
    if not fits:
        return table
    best = min(fits, key=lambda id: (id != prefer, MODELS[id].context != spec.context, len(id), id))
    if "context" in unsure or MODELS[best].context == spec.context:
        return best
    return {"base": best, "context": spec.context}


@cache
def _sizes(id: str) -> Mapping[str, int]:
    """A glance at the entry's file, so that few entries are built."""
    raw = MODELS.table(id)
    return {key: raw[key] for key in ("hidden", "layers", "vocab") if key in raw}


def _could_be(id: str, spec: ModelSpec, unsure: tuple[str, ...]) -> bool:
    given = {"hidden": spec.hidden, "layers": spec.layers, "vocab": spec.vocab}
    return all(key in unsure or given[key] == size for key, size in _sizes(id).items())


def _equal(entry: ModelSpec, spec: ModelSpec, unsure: tuple[str, ...]) -> bool:
    labels = {"id": "", "name": "", "source": "", "context": 0, "vision": None}
    if "vocab" in unsure:
        labels["vocab"] = 0
    if "mtp" in unsure:
        labels["mtp"] = None
    return replace(entry, **labels) == replace(spec, **labels)  # type: ignore[arg-type]


def _norm(norm: Norm) -> dict[str, Any]:
    return {"kind": norm.kind, "bias": norm.bias} | ({} if norm.weight else {"weight": False})


def _parts(block: Block) -> dict[str, Any]:
    """One layer's parts as a file writes them, what equals its default left out."""
    parts: dict[str, Any] = {}
    if block.mixer is not None:
        parts["attention"] = _plain(block.mixer)
    if block.ffn is not None:
        parts[block.ffn.kind] = {key: value for key, value in _plain(block.ffn).items() if key != "kind"}
    if block.norm != Norm():
        parts["norm"] = _norm(block.norm)
    rest = {"norms": block.norms, "parallel": block.parallel, "extra": block.extra}
    return parts | {key: value for key, value in rest.items() if value != Block.__dataclass_fields__[key].default}


def _plain(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "kind" and value != "attention":
            found["kind"] = value
        elif field.default is MISSING or value != field.default:
            found[field.name] = _plain(value) if hasattr(value, "__dataclass_fields__") else value
    return found


def runs(order: tuple[int, ...]) -> Iterable[str]:
    """Block names with how often each stands in a row.

    >>> list(runs((0, 0, 0, 1)))
    ['b0*3', 'b1']
    """
    start = 0
    for index in range(1, len(order) + 1):
        if index == len(order) or order[index] != order[start]:
            count = index - start
            yield f"b{order[start]}*{count}" if count > 1 else f"b{order[start]}"
            start = index
