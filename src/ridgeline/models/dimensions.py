"""Turn a table of dimensions, as a person or a catalog file writes it, into a ModelSpec, and that into its table.

    hidden = 4096                      layers = 32                    vocab = 128256
    [attention]                        heads, kv_heads, head_dim, ... (kind = "mla", "mamba2", ... for others); or a
                                       word: attention = "mqa" (`models.attention_words`)
    [mlp]                              hidden, gated, activation, bias
    [cross]                            heads, ... of attention that reads the encoder's output
    [encoder]                          hidden, layers, block = { attention, mlp, norm }, reads, context, ...
    [vision], [audio]                  hidden, layers, block, ... of encoders whose output stands in the sequence
    [head]                             kind = "sequence", "tokens", "none" or "language", outputs, dense
    [moe]                              experts, topk, hidden, shared_hidden, ...; `first_dense` layers use [mlp] instead
    pattern = ["local*5", "global"]    names of [block.NAME] tables, repeated until all layers are spelled

A [block.NAME] table holds attention, beside, cross, mlp, moe, norm, norms, parallel, extra, captured (`ridgeline
capture` writes that one); what it leaves out comes from the top level (key by key, unless it changes the `kind`), and
`attention = false`, `mlp = false` or `moe = false` leaves that part out. A layer with both mlp and moe is a moe layer.

`mtp = N` adds N layers of multi-token prediction: copies of the last layer, or of the [block.NAME] that `mtp_block`
names, which no pattern has to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Annotated

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Doc, Size, Via, decode_into, given_text
from ridgeline.models.attention_words import spell_model
from ridgeline.models.spec import (
    Attention,
    Audio,
    Block,
    Captured,
    CaptureRecord,
    Companion,
    Embedding,
    Encoder,
    Head,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
    Mtp,
    Norm,
    Vision,
    from_layers,
)

MOST_LAYERS = 10_000
PARTS = ("attention", "beside", "cross", "mlp", "moe", "norm", "norms", "parallel", "extra", "captured")


def _norm(value: object) -> object:
    return {"kind": value, "bias": value == "layer"} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """The parts of one kind of layer as written in a file."""

    attention: Mixer | None = None
    beside: Mixer | None = None
    cross: Attention | None = None
    mlp: Mlp | None = None
    moe: Moe | None = None
    norm: Annotated[Norm, Via(_norm)] = Norm()
    norms: Size = 2
    parallel: bool = False
    extra: Size = 0
    captured: Captured | None = None

    def block(self) -> Block:
        """The block these parts make."""
        return Block(
            mixer=self.attention,
            beside=self.beside,
            cross=self.cross,
            ffn=self.moe or self.mlp,
            norm=self.norm,
            norms=self.norms,
            parallel=self.parallel,
            extra=self.extra,
            captured=self.captured,
        )

    def problems(self) -> Iterable[Problem]:
        if self.attention is None and self.mlp is None and self.moe is None and self.captured is None:
            yield Problem(path="attention", given="nothing", expected="attention, mlp or moe", todo="add one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Everything a table of dimensions says apart from its layers' parts."""

    hidden: Annotated[Count, Doc("width of the residual stream")]
    layers: Annotated[Count, Doc("number of layers")]
    vocab: Annotated[Count, Doc("rows of the token embedding")]
    name: str = ""
    source: str = ""
    aliases: tuple[str, ...] = ()
    context: Size = 0
    tied: bool = False
    positions: Size = 0
    embedding_width: Size = 0
    embedding_norm: Annotated[Norm | None, Via(_norm)] = None
    head_bias: bool = False
    softcap: bool = False
    further_rows: Size = 0
    further_weights: Size = 0
    final_norm: Annotated[Norm | bool | None, Via(_norm)] = None  # as the layers' norm; false: none
    first_dense: Size = 0
    mtp: Size = 0
    mtp_block: str = ""  # the last layer
    pattern: tuple[str, ...] = ()
    vision: Vision | None = None
    audio: Audio | None = None
    companions: tuple[Companion, ...] = ()
    encoder: Encoder | None = None
    head: Head | None = None
    capture: CaptureRecord | None = None


def read_dimensions(id: str, table: JsonMapping, path: str = "") -> ModelSpec:
    """The model a table of dimensions describes, or an `InputError` with everything wrong in it."""
    problems: list[Problem] = []
    table = spell_model(table, {}, path, problems)
    top_level = {key: value for key, value in table.items() if key not in PARTS and key != "block"}
    dims = decode_into(Dimensions, _with_blocks(top_level, path, problems), path, problems)
    _check_size(table, path, problems)
    if problems or dims is None:
        raise InputError(problems + _block_problems(table, path))
    blocks_by_name: dict[tuple[str, bool], Block | None] = {}
    names = _spell(dims.pattern, dims.layers, path, problems)
    _check_names(table, {"pattern": names, "mtp_block": [dims.mtp_block]}, path, problems)
    layer_keys = [(name, index < dims.first_dense) for index, name in enumerate(names)]
    ahead = (dims.mtp_block, False) if dims.mtp_block or not layer_keys else layer_keys[-1]
    for key in dict.fromkeys([*layer_keys, ahead]):
        layer = decode_into(LayerTable, _defaults(_parts(table, *key), dims.hidden), path, problems)
        blocks_by_name[key] = layer.block() if layer else None
    if problems:
        raise InputError(dict.fromkeys(problems))
    kinds = {key: block for key, block in blocks_by_name.items() if block}
    used = dict.fromkeys(layer_keys)
    blocks, index = from_layers(kinds[key] for key in used)
    place = dict(zip(used, index, strict=True))
    order = tuple(place[key] for key in layer_keys)
    return _build(id, dims, blocks, order, kinds[ahead])


def _with_blocks(table: JsonObject, path: str, problems: list[Problem]) -> JsonObject:
    """The table with the blocks of its encoders decoded, which are spelled as layers are."""
    decoded_towers: JsonObject = {}
    for name in ("vision", "audio", "encoder"):
        tower = table.get(name)
        if isinstance(tower, Mapping) and "block" in tower:
            layer = decode_into(LayerTable, tower["block"], f"{_at(path, name)}.block", problems)
            decoded_towers[name] = {**tower, "block": (layer or LayerTable()).block()}
    return table | decoded_towers


def _check_size(table: JsonMapping, path: str, problems: list[Problem]) -> None:
    """What must hold before layers are spelled out: a sane number of them, and [block.NAME] tables that are tables."""
    layers, blocks = table.get("layers"), table.get("block", {})
    if isinstance(layers, (int, float)) and layers > MOST_LAYERS:  # 1e6 is a whole number to the decoder too
        problems.append(Problem(path=_at(path, "layers"), given=f"{layers}"[:40], expected=f"at most {MOST_LAYERS}"))
    if not isinstance(blocks, Mapping) or not all(isinstance(part, Mapping) for part in blocks.values()):
        problems.append(Problem(path=_at(path, "block"), given=given_text(blocks), expected="[block.NAME] tables"))


def _block_problems(table: JsonMapping, path: str) -> list[Problem]:
    """What is wrong with the top level's parts, told together with what is wrong elsewhere."""
    problems: list[Problem] = []
    parts = {key: table[key] for key in PARTS if key in table and table[key] is not False}
    if parts:
        decode_into(LayerTable, _defaults(parts, table.get("hidden")), path, problems)
    return problems


def _build(id: str, dims: Dimensions, blocks: tuple[Block, ...], order: tuple[int, ...], ahead: Block) -> ModelSpec:
    embedding = Embedding(
        tied=dims.tied,
        positions=dims.positions,
        width=dims.embedding_width,
        norm=dims.embedding_norm,
        head_bias=dims.head_bias,
        softcap=dims.softcap,
        further_rows=dims.further_rows,
        further_weights=dims.further_weights,
    )
    last_norm = dims.final_norm if isinstance(dims.final_norm, Norm) else blocks[order[-1]].norm
    return ModelSpec(
        id=id,
        name=dims.name or id,
        hidden=dims.hidden,
        vocab=dims.vocab,
        embedding=embedding,
        blocks=blocks,
        order=order,
        norm=None if dims.final_norm is False else last_norm,
        context=dims.context,
        mtp=Mtp(depth=dims.mtp, block=ahead) if dims.mtp else None,
        vision=dims.vision,
        audio=dims.audio,
        companions=dims.companions,
        source=dims.source,
        head=dims.head,
        encoder=dims.encoder,
        capture=dims.capture,
    )


def _spell(pattern: tuple[str, ...], layers: int, path: str, problems: list[Problem]) -> list[str]:
    """The block name of every layer: the pattern repeated and cut to length; one nameless block without a pattern."""
    if not pattern:
        return [""] * layers
    once: list[str] = []
    for item in pattern:
        match = re.fullmatch(r"([\w-]+)(?:\*([1-9]\d{0,3}))?", item)
        if match is None:
            expectation = 'a block name, or a name and a count such as "local*5"'
            problems.append(Problem(path=_at(path, "pattern"), given=given_text(item), expected=expectation))
            return []
        if len(once) < layers:
            once.extend([match.group(1)] * int(match.group(2) or 1))
    return (once * (layers // len(once) + 1))[:layers]


def _check_names(table: JsonMapping, named: Mapping[str, list[str]], path: str, problems: list[Problem]) -> None:
    """Each name that a key gives, unless it is empty, must have its [block.NAME] table."""
    blocks = table.get("block", MappingProxyType({}))
    for key, names in named.items():
        for name in dict.fromkeys(names):
            if name and name not in blocks:
                expectation = f"one of {', '.join(blocks)}" if blocks else "the name of a [block.NAME] table"
                problems.append(Problem(path=_at(path, key), given=given_text(name), expected=expectation))


def _parts(table: JsonMapping, name: str, dense: bool) -> JsonObject:
    """The raw parts of one layer: the top level overlaid with its block table."""
    parts = {key: table[key] for key in PARTS if key in table}
    blocks = table.get("block", MappingProxyType({}))
    for key, value in dict(blocks.get(name, {})).items():
        below = parts.get(key)
        same = (
            isinstance(below, Mapping)
            and isinstance(value, Mapping)
            and value.get("kind", below.get("kind")) == below.get("kind")
        )
        parts[key] = {**below, **value} if same and isinstance(below, Mapping) else value
    if dense:
        parts["moe"] = False
    return {key: value for key, value in parts.items() if not (value is False and key in ("attention", "mlp", "moe"))}


def _defaults(parts: JsonObject, hidden: object) -> JsonObject:
    """Parts with what softmax attention may leave out: its kind, kv_heads = heads, head_dim = hidden / heads."""
    attention = parts.get("attention")
    if isinstance(attention, Mapping) and attention.get("kind", "attention") == "attention":
        heads = attention.get("heads")
        defaults: JsonObject = {"kind": "attention"}
        if isinstance(heads, int) and heads > 0 and isinstance(hidden, int):
            defaults |= {"kv_heads": heads} | ({"head_dim": hidden // heads} if hidden % heads == 0 else {})
        return parts | {"attention": defaults | dict(attention)}
    return parts


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def dimensions_of(spec: ModelSpec) -> JsonObject:
    """The table of a model, with a [block.NAME] for every kind of layer; `read_dimensions` is its inverse. Models of a
    latent space are refused: no table describes them.

    >>> from ridgeline.models.load import model
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
    table |= {
        "vision": _tower(spec.vision) if spec.vision else None,
        "audio": _tower(spec.audio) if spec.audio else None,
        "companions": _plain(spec.companions) or None,
        "encoder": _tower(spec.encoder) if spec.encoder else None,
        "head": _plain(spec.head),
        "capture": _plain(spec.capture),
    }
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
    return {name: _plain(part) for name, (part, field) in values.items() if name == "kind" or part != field.default}
