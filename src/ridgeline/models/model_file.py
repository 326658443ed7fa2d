"""Turn a ModelSpec into the table of dimensions that reads back as the same model: what a model file holds.

Every kind of layer is a [block.NAME] table, and `pattern` spells the layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import groupby

from ridgeline.core.documents import JsonObject, JsonValue
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import Audio, Block, Encoder, Mlp, ModelSpec, Moe, Norm, Vision


def dimensions_of(spec: ModelSpec) -> JsonObject:
    """The table of a model; `ridgeline.models.dimensions.read_dimensions` is its inverse. Models of a latent space are
    refused: no table describes them.

    >>> from ridgeline.models.load import model
    >>> from ridgeline.models.dimensions import read_dimensions
    >>> llama = model("llama3-8b")
    >>> read_dimensions(llama.id, dimensions_of(llama)) == llama
    True
    """
    if spec.latent_space is not None:
        expectation = "a model of tokens; what diffuses in a latent space has no table of dimensions"
        raise InputError(Problem(path="model", given=spec.id, expected=expectation))
    embedding = spec.embedding
    table: JsonObject = {
        "name": spec.name, "source": spec.source, "hidden": spec.hidden, "layers": spec.layers, "vocab": spec.vocab,
        "context": spec.context, "tied": embedding.tied, "positions": embedding.positions,
        "embedding_width": embedding.width, "embedding_norm": _plain(embedding.norm),
        "head_bias": embedding.head_bias, "softcap": embedding.softcap, "further_rows": embedding.further_rows,
        "further_weights": embedding.further_weights, "final_norm": _norm_table(spec.norm) if spec.norm else False,
        "pattern": list(_pattern(spec.order)),
    }  # fmt: skip
    blocks = {f"b{place}": _layer(block) for place, block in enumerate(spec.blocks)}
    if spec.mtp:
        table |= {"mtp": spec.mtp.depth, "mtp_block": "ahead"}
        blocks["ahead"] = _layer(spec.mtp.block)
    if spec.vision:
        table["vision"] = _tower(spec.vision)
    if spec.audio:
        table["audio"] = _tower(spec.audio)
    if spec.companions:
        table["companions"] = _plain(spec.companions)
    if spec.encoder:
        table["encoder"] = _tower(spec.encoder)
    if spec.head:
        table["head"] = _plain(spec.head)
    if spec.capture:
        table["capture"] = _plain(spec.capture)
    entries = {key: value for key, value in table.items() if value not in (None, "", 0) or key == "final_norm"}
    return {**entries, "block": blocks}


def _pattern(order: tuple[int, ...]) -> Iterator[str]:
    for place, run in groupby(order):
        times = len(list(run))
        yield f"b{place}*{times}" if times > 1 else f"b{place}"


def _layer(block: Block) -> JsonObject:
    """A block as a [block.NAME] table; what is not there is said to be not there."""
    return {
        "attention": _plain(block.mixer) or False,
        **({"beside": _plain(block.beside)} if block.beside else {}),
        **({"cross": _plain(block.cross)} if block.cross else {}),
        "mlp": _plain(block.ffn) if isinstance(block.ffn, Mlp) else False,
        "moe": _plain(block.ffn) if isinstance(block.ffn, Moe) else False,
        "norm": _norm_table(block.norm),
        "norms": block.norms,
        "parallel": block.parallel,
        "extra": block.extra,
        **({"captured": _plain(block.captured)} if block.captured else {}),
    }


def _tower(tower: Vision | Audio | Encoder) -> JsonObject:
    table = {key: value for key, value in (_plain(tower) or {}).items() if key != "block"}
    return {**table, "block": {key: part for key, part in _layer(tower.block).items() if part is not False}}


def _norm_table(norm: Norm) -> JsonObject:
    return {"kind": norm.kind, "bias": norm.bias, "weight": norm.weight}


def _plain(value: object) -> JsonValue:
    """A dataclass as a table of what differs from its defaults, and its kind; tuples as lists."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if not is_dataclass(value):
        return value
    values = {field.name: (getattr(value, field.name), field) for field in fields(value)}
    return {name: _plain(part) for name, (part, field) in values.items() if name == "kind" or part != _default(field)}


def _default(field: Field[object]) -> object:
    return field.default if field.default is not MISSING else MISSING
