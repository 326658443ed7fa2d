"""Turn the words people use for attention into tables of dimensions: "gqa", "mqa", "mha", "mla", "sliding", ...

    attention = "mqa"                                   a word alone, upon a model that has the rest
    attention = { kind = "sliding", window = 4096 }     a word in place of `kind`, with what it needs

A word is another spelling: parameters, cache and flops are those of the table it stands for. Where a dimension is
missing, or contradicts the word, the problem names it and shows the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.errors import Problem, near
from ridgeline.core.records import dataclass

SOFTMAX, LATENT = "attention", "mla"
KINDS = (SOFTMAX, LATENT, "compressed", "mamba2", "gated-delta", "recurrence")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWord:
    """What a word stands for.

    kind      of the table
    entries   keys that the word settles
    needs     keys that somebody has to give
    example   a table with all it needs
    """

    kind: str
    entries: Mapping[str, JsonValue] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    example: str = ""


_GROUPED = AttentionWord(kind=SOFTMAX, needs=("heads", "kv_heads"), example='kind = "gqa", heads = 64, kv_heads = 8')
_MULTI = AttentionWord(kind=SOFTMAX, needs=("heads",), example='kind = "mha", heads = 64')
_SINGLE = AttentionWord(
    kind=SOFTMAX, entries=MappingProxyType({"kv_heads": 1}), needs=("heads",), example='kind = "mqa", heads = 64'
)
_FULL = AttentionWord(
    kind=SOFTMAX, entries=MappingProxyType({"window": 0}), needs=("heads",), example='kind = "full", heads = 64'
)
_SLIDING = AttentionWord(
    kind=SOFTMAX, entries=MappingProxyType({"chunked": False}), needs=("heads", "window"),
    example='kind = "sliding", heads = 64, kv_heads = 8, window = 4096',
)  # fmt: skip
_CHUNKED = AttentionWord(
    kind=SOFTMAX, entries=MappingProxyType({"chunked": True}), needs=("heads", "window"),
    example='kind = "chunked", heads = 64, kv_heads = 8, window = 8192',
)  # fmt: skip
_LATENT = AttentionWord(
    kind=LATENT, needs=("heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim"),
    example='kind = "mla", heads = 128, q_rank = 1536, kv_rank = 512, nope_dim = 128, rope_dim = 64, v_dim = 128',
)  # fmt: skip
_SSM = AttentionWord(
    kind="mamba2", needs=("heads", "head_dim", "state"),
    example='kind = "mamba2", heads = 80, head_dim = 64, state = 128',
)  # fmt: skip
_DELTA = AttentionWord(
    kind="gated-delta", needs=("key_heads", "value_heads", "key_dim", "value_dim"),
    example='kind = "gated-delta", key_heads = 16, value_heads = 32, key_dim = 128, value_dim = 128',
)  # fmt: skip


def _recurrent(form: str) -> AttentionWord:
    return AttentionWord(
        kind="recurrence", entries=MappingProxyType({"form": form}), needs=("heads",),
        example=f'kind = "recurrence", form = "{form}", heads = 32, key_dim = 128, value_dim = 128',
    )  # fmt: skip


WORDS: Mapping[str, AttentionWord] = MappingProxyType(
    {
        "gqa": _GROUPED, "grouped-query": _GROUPED, "mha": _MULTI, "multi-head": _MULTI, "mqa": _SINGLE,
        "multi-query": _SINGLE, "full": _FULL, "global": _FULL, "sliding": _SLIDING, "sliding-window": _SLIDING,
        "swa": _SLIDING, "local": _SLIDING, "chunked": _CHUNKED, "mla": _LATENT, "latent": _LATENT,
        "multi-head-latent": _LATENT, "mamba2": _SSM, "mamba-2": _SSM, "ssd": _SSM, "gated-deltanet": _DELTA,
        "gdn": _DELTA, "gated-delta": _DELTA, "mamba": _recurrent("selective"), "mamba1": _recurrent("selective"),
        "lightning": _recurrent("lightning"), "kda": _recurrent("kda"), "mlstm": _recurrent("mlstm"),
        "xlstm": _recurrent("mlstm"), "rwkv": _recurrent("wkv"), "short-conv": _recurrent("short-conv"),
    }
)  # fmt: skip
COMMON = ("gqa", "mha", "mqa", "sliding", "full", "mla", "mamba2", "gated-delta")


def spell_attention(value: object, below: JsonMapping, path: str, problems: list[Problem]) -> object:
    """The table that an attention word means; anything else as it is.

    below   the attention table that this one is laid upon: gives what the word leaves open, heads of another kind too

    >>> spell_attention("mqa", {"heads": 32, "kv_heads": 8}, "attention", [])
    {'kv_heads': 1}
    >>> spell_attention({"kind": "SWA", "window": 4096}, {"heads": 32}, "attention", [])
    {'window': 4096, 'chunked': False}
    """
    given: JsonMapping = value if isinstance(value, Mapping) else MappingProxyType({"kind": value})
    written = given.get("kind")
    if not isinstance(written, str):
        return value
    name = written.strip().lower().replace("_", "-").removesuffix("-attention")
    if name not in WORDS:
        if written in KINDS and isinstance(value, Mapping):
            return value
        problems.append(_unknown_word(written, path))
        return value
    word = WORDS[name]
    rest: JsonObject = {key: entry for key, entry in given.items() if key != "kind"}
    is_same = below.get("kind", SOFTMAX) == word.kind
    has_heads = {word.kind, below.get("kind", SOFTMAX)} <= {SOFTMAX, LATENT} and "heads" in below
    under = below if is_same else {"heads": below["heads"]} if has_heads else {}
    head_count = {} if is_same else under
    kind = {} if is_same and "kind" not in below else {"kind": word.kind}  # a table without one is softmax attention
    word_table: JsonObject = {**head_count, **rest, **kind, **word.entries}
    if name in ("mha", "multi-head"):
        word_table |= _own_kv_heads(rest, under)
    problems += [*_contradictions(name, rest, word_table, path), *_missing(name, under, word_table, path)]
    return word_table


def _own_kv_heads(rest: JsonMapping, under: JsonMapping) -> JsonObject:
    """As many key heads as heads, where these are known; else the decoder gives as many."""
    heads = rest.get("heads", under.get("heads"))
    return {"kv_heads": heads} if heads is not None else {}


def _contradictions(name: str, rest: JsonMapping, word_table: JsonMapping, path: str) -> Iterator[Problem]:
    """Keys that somebody gave and that the word settles otherwise."""
    for key in rest:
        if key in word_table and rest[key] != word_table[key]:
            expected = f"{key} = {word_table[key]}, which {name} means"
            todo = f"drop {key}, or use another word: {', '.join(COMMON)}"
            yield Problem(path=f"{path}.{key}", given=str(rest[key])[:40], expected=expected, todo=todo)


def _missing(name: str, under: JsonMapping, word_table: JsonMapping, path: str) -> Iterator[Problem]:
    """What a word needs and nobody gave; a group of one head, or of all, is not what "gqa" asks for."""
    word = WORDS[name]
    known = {**under, **word_table}
    absent = [key for key in word.needs if key not in known]
    if word is _GROUPED and "kv_heads" not in word_table and under.get("kv_heads") in (None, 1, under.get("heads")):
        absent = [*[key for key in absent if key != "kv_heads"], "kv_heads"]
    if word is _SLIDING or word is _CHUNKED:
        absent = [key for key in absent if key != "window"] + ([] if known.get("window") else ["window"])
    if absent:
        example = f"for example attention = {{ {word.example} }}"
        yield Problem(path=path, given=f"{name!r} alone", expected=f"{', '.join(absent)} with it", todo=example)


def _unknown_word(written: str, path: str) -> Problem:
    """A word that nothing is known of, with the nearest."""
    close = near(written.lower(), [*WORDS, *KINDS], 1)
    todo = f"did you mean {close[0]!r}?" if close else "or a table: attention = { heads = 64, kv_heads = 8 }"
    return Problem(path=path, given=repr(written[:40]), expected=f"one of {', '.join(COMMON)}", todo=todo)


def spell_model(table: JsonMapping, below: JsonMapping, path: str, problems: list[Problem]) -> JsonObject:
    """A model's table, or what changes one, with every attention word spelled out: of layers, blocks and encoders.

    below   the table it is laid upon, empty where it stands alone
    """
    word_table: JsonObject = dict(table)
    top = _table(below, "attention")
    if "attention" in word_table and (owners := _owning_blocks(below)):
        keys = " or ".join(f"block.{name}.attention" for name in owners)
        expected = f"{keys}: each kind of layer of this model has its own"
        given = word_table["attention"] if isinstance(word_table["attention"], str) else "a table"
        problems.append(Problem(path=_at(path, "attention"), given=str(given)[:40], expected=expected))
        return word_table
    if "attention" in word_table:
        word_table["attention"] = spell_attention(word_table["attention"], top, _at(path, "attention"), problems)
    own = word_table.get("attention")
    if isinstance(own, Mapping):
        same = own.get("kind", SOFTMAX) == top.get("kind", SOFTMAX)
        top = {**top, **own} if same else own
    blocks, blocks_below = word_table.get("block"), _table(below, "block")
    if isinstance(blocks, Mapping):
        word_table["block"] = {
            name: _spell_parts(part, {**top, **_table(_table(blocks_below, name), "attention")},
                               _at(path, f"block.{name}"), problems)
            for name, part in blocks.items()
        }  # fmt: skip
    for name in ("vision", "audio", "encoder"):
        tower = word_table.get(name)
        if isinstance(tower, Mapping) and isinstance(tower.get("block"), Mapping):
            under = _table(_table(_table(below, name), "block"), "attention")
            word_table[name] = {
                **tower,
                "block": _spell_parts(tower["block"], under, _at(path, f"{name}.block"), problems),
            }
    return word_table


def _owning_blocks(below: JsonMapping) -> list[str]:
    """Blocks of a model whose attention is its own in each, so that one at the top would change nothing."""
    blocks = _table(below, "block")
    owners = [str(name) for name, part in blocks.items() if isinstance(part, Mapping) and "attention" in part]
    return owners if "attention" not in below and len(owners) == len(blocks) else []


def _spell_parts(parts: object, below: JsonMapping, path: str, problems: list[Problem]) -> object:
    if not isinstance(parts, Mapping) or "attention" not in parts:
        return parts
    return {**parts, "attention": spell_attention(parts["attention"], below, _at(path, "attention"), problems)}


def _table(value: JsonMapping, key: str) -> JsonMapping:
    part = value.get(key)
    return part if isinstance(part, Mapping) else {}


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
