"""Turn one config.json into typed values, noting which keys were read and everything that is wrong with them.

A reader asks for each key it understands; `finish` then raises one `InputError` with every problem met, among them
every key that nobody asked for and that is not known to be irrelevant to the shape.

A key is irrelevant in `keys.toml` when no value of it adds, removes or resizes a parameter, nor changes which tokens a
layer sees. A key belongs to `OFF` when its usual value is harmless and any other is a feature that no reader supports.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.table import BIGGEST

OFF = frozenset({"is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size", "pruned_heads"})


MOST_LAYERS = 4096  # several times the deepest model there is
LEGACY_KINDS: Mapping[str, str] = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
}
Keys = str | tuple[str, ...]
T = TypeVar("T")


@cache
def read_toml(name: str) -> Mapping[str, JsonMapping]:
    """A table of this folder."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def defaults(model_type: str) -> JsonMapping:
    """What transformers assumes for keys that a config of this type leaves out."""
    return read_toml("defaults.toml").get(model_type, {})


@cache
def irrelevant_keys() -> frozenset[str]:
    """Keys that change the shape of no model."""
    return frozenset(" ".join(read_toml("keys.toml")["irrelevant"].values()).split())


class Config:
    """A config being read. Mutable on purpose: it remembers the keys taken and the problems found.

    A value that cannot be used is noted and a harmless one returned in its place, so that one pass finds all problems;
    nothing built on the way leaves the reader, because `finish` raises.
    """

    def __init__(
        self,
        data: JsonMapping,
        defaults: JsonMapping = MappingProxyType({}),
        path: str = "",
        problems: list[Problem] | None = None,
    ) -> None:
        self.data, self.defaults, self.path = data, defaults, path
        self.problems: list[Problem] = [] if problems is None else problems
        self._taken: set[str] = set()
        self._children: dict[str, Config] = {}

    def count(self, keys: Keys, null: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; `null` stands for a null, or for a key without a default."""
        key, value = self._value(keys)
        if value is None:
            return self._missing(key, null, least)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= BIGGEST
        if is_number and value == int(value) and value >= least:
            return int(value)
        self.bad(key, value, f"a whole number from {least} to 2^53")
        return least

    def size(self, keys: Keys, null: int | None = None) -> int:
        """A whole number that may be 0."""
        return self.count(keys, null, least=0)

    def number(self, keys: Keys) -> float:
        """A finite number; 0 where it is absent or null."""
        key, value = self._value(keys)
        if value is None:
            return 0.0
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= BIGGEST:
            return float(value)
        self.bad(key, value, "a number")
        return 0.0

    def layers(self, keys: Keys = "num_hidden_layers") -> int:
        """A number of layers: a count small enough to spell the layers one by one."""
        layers = self.count(keys)
        if layers <= MOST_LAYERS:
            return layers
        self.bad(keys if isinstance(keys, str) else keys[0], layers, f"at most {MOST_LAYERS} layers")
        return 1

    def flag(self, keys: Keys, null: bool | None = None) -> bool:
        """true or false."""
        key, value = self._value(keys)
        if value is None:
            return self._missing(key, null, False)
        if not isinstance(value, bool):
            self.bad(key, value, "true or false")
        return value is True

    def word(self, keys: Keys, null: str | None = None) -> str:
        """A string."""
        key, value = self._value(keys)
        if value is None:
            return self._missing(key, null, "")
        if not isinstance(value, str):
            self.bad(key, value, "a string")
            return ""
        return value

    def words(self, keys: Keys, length: int, allowed: Collection[str]) -> tuple[str, ...] | None:
        """One allowed word for each of `length` layers, old spellings renewed; None when the key is absent or null."""
        key, value = self._value(keys)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or len(value) != length:
            self.bad(key, value, f"a list of {length} words, one for each layer")
            return None
        words = tuple(LEGACY_KINDS.get(word, word) if isinstance(word, str) else word for word in value)
        wrong = [word for word in words if not isinstance(word, str) or word not in allowed]
        if wrong:
            self.bad(key, wrong[0], f"words among {', '.join(sorted(allowed))}")
        return None if wrong else words

    def counts(self, keys: Keys) -> tuple[int, ...]:
        """A list of whole numbers, each at least 0; null means an empty one."""
        key, value = self._value(keys)
        if value is None:
            return ()
        short = isinstance(value, (list, tuple)) and len(value) <= MOST_LAYERS
        if short and all(type(item) is int and 0 <= item <= BIGGEST for item in value):
            return tuple(value)
        self.bad(key, value, "a list of whole numbers")
        return ()

    def pairs(self, keys: Keys) -> tuple[tuple[int, int], ...]:
        """A list of pairs of whole numbers, each at least 1; null means an empty one."""
        key, value = self._value(keys)
        if value is None:
            return ()
        entries = value if isinstance(value, (list, tuple)) and len(value) <= MOST_LAYERS else ()
        pairs = [tuple(pair) for pair in entries if isinstance(pair, (list, tuple)) and len(pair) == 2]
        if pairs and len(pairs) == len(entries) and all(type(n) is int and 0 < n <= BIGGEST for p in pairs for n in p):
            return tuple((first, second) for first, second in pairs)
        self.bad(key, value, "a list of pairs of whole numbers")
        return ()

    def square(self, keys: Keys) -> int:
        """A side length, written as one number or as an equal pair."""
        key, value = self._value(keys)
        if not isinstance(value, (list, tuple)):
            return self.count(keys)
        sides = self.counts(keys)
        if len(sides) == 2 and sides[0] == sides[1] and sides[0] > 0:
            return sides[0]
        self.bad(key, value, "a number or two equal ones")
        return 1

    def child(self, key: str, defaults: JsonMapping = MappingProxyType({})) -> Config | None:
        """A nested config; None when it is absent or null."""
        _, value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.bad(key, value, "a table of keys")
            return None
        return self._children.setdefault(key, Config(value, defaults, f"{self.path}{key}.", self.problems))

    def aside(self, key: str, defaults: JsonMapping) -> Config:
        """A nested config of something that is counted and not described: keys that nobody asks for are left alone."""
        _, value = self._value(key)
        if value is not None and not isinstance(value, Mapping):
            self.bad(key, value, "a table of keys")
        data = value if isinstance(value, Mapping) else {}
        return Config(data, defaults, f"{self.path}{key}.", self.problems)

    def adopt(self, key: str, data: JsonMapping, defaults: JsonMapping) -> Config:
        """A nested config that the file leaves out, read from the given data and defaults."""
        return self._children.setdefault(key, Config(data, defaults, f"{self.path}{key}.", self.problems))

    def flattened(self, without: Collection[str], defaults: JsonMapping) -> Config:
        """This level's own keys as a nested config, for files that do not nest; leftovers are looked for there."""
        data = {key: value for key, value in self.data.items() if key not in without}
        self._taken.update(data)
        return self._children.setdefault("", Config(data, defaults, self.path, self.problems))

    def only(self, keys: Keys, *allowed: object) -> None:
        """Refuse a key whose value is none of these; absent and null are fine."""
        key, value = self._value(keys)
        if value is None or any(type(value) is type(option) and value == option for option in allowed):
            return
        self.bad(key, value, " or ".join(quote_value(option) for option in allowed), "it changes the architecture")

    def ignore(self, *keys: str) -> None:
        """Mark keys of this family as understood and without effect on the shape."""
        self._taken.update(keys)

    def understand(self, reader: str) -> None:
        """Take what `keys.toml` or `families.toml` say of a reader: keys without effect, and what others may be."""
        table = read_toml("keys.toml").get(reader) or read_toml("families.toml")[reader]
        self.ignore(*table.get("ignore", "").split())
        for key, allowed in table.get("only", {}).items():
            self.only(key, *allowed)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self.data.get(key) is not None

    def bad(self, key: str, value: object, expected: str, todo: str = "") -> None:
        """Note a problem with the key."""
        self.problems.append(Problem(path=f"{self.path}{key}", given=quote_value(value), expected=expected, todo=todo))

    def clash(self, key: str, value: object, expected: str, todo: str = "") -> None:
        """Note that sizes do not fit together, unless a single one is already known to be wrong."""
        if not self.problems:
            self.bad(key, value, expected, todo)

    def finish(self) -> None:
        """Raise everything that is wrong, keys that nobody understood included."""
        self._leftovers()
        if self.problems:
            raise InputError(dict.fromkeys(self.problems))

    def _leftovers(self) -> None:
        for child in self._children.values():
            child._leftovers()
        for key, value in self.data.items():
            if key in self._taken or key in irrelevant_keys() or value is None:
                continue
            if key in OFF and (value is False or value == {} or value == []):
                continue
            expectation = "false or nothing" if key in OFF else "a key that this model_type's reader knows"
            name = key if isinstance(key, str) else quote_value(key)
            self.bad(
                name if len(name) <= 60 else name[:57] + "...",
                value,
                expectation,
                "it may change the architecture, so it is not skipped",
            )

    def _value(self, keys: Keys) -> tuple[str, JsonValue]:
        """The first spelling that has a value, and that value, or the default; two that differ are a problem."""
        names = (keys,) if isinstance(keys, str) else keys
        self._taken.update(names)
        given_text = [(name, self.data[name]) for name in names if self.data.get(name) is not None]
        for name, value in given_text[1:]:
            if value != given_text[0][1]:
                self.bad(name, value, f"the same as {given_text[0][0]}, {quote_value(given_text[0][1])}")
        if given_text:
            return given_text[0]
        if any(name in self.data for name in names):  # an explicit null is not a default
            return next(name for name in names if name in self.data), None
        return next(((name, self.defaults[name]) for name in names if name in self.defaults), (names[0], None))

    def _missing(self, key: str, null: T | None, instead: T) -> T:
        if null is not None:
            return null
        self.bad(key, None, "a value", f"missing key {key!r}: add it")
        return instead


def quote_value(value: object) -> str:
    """A value short enough for a message, whatever it is."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and abs(value) > BIGGEST:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
        "vocab": ("vocab_size",),
        "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
        "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
        "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
        "head_dim": ("head_dim",),
        "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        "topk": ("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk"),
        "tied": ("tie_word_embeddings",),
        "mtp": ("num_nextn_predict_layers", "num_mtp_layers"),
    }
)


STACKS = ("decoder_layers", "encoder_layers")  # models of two stacks size each; `layers` means both
THINKING = ("qwen2_5_omni", "qwen3_omni_moe")


def in_its_keys(data: JsonMapping, known: JsonMapping = MappingProxyType({})) -> JsonObject:
    """The config with each of the catalog's words under the name that this file, or its type, uses; `known`: keys that
    its reader knows, where no type says.

    >>> in_its_keys({"model_type": "gpt2", "n_layer": 12, "layers": 2})
    {'model_type': 'gpt2', 'n_layer': 2}
    >>> in_its_keys({"model_type": "qwen2_5_omni", "layers": 2})
    {'model_type': 'qwen2_5_omni', 'thinker_config': {'text_config': {'num_hidden_layers': 2}}}
    >>> in_its_keys({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": ["a", "b", "a"], "layers": 2})
    {'model_type': 'gpt_oss', 'num_hidden_layers': 2, 'layer_types': ['a', 'b']}
    """
    catalog_words = {word: data[word] for word in WORDS if word in data and word not in WORDS[word]}
    config_keys = {key: value for key, value in data.items() if key not in catalog_words}
    if not catalog_words:
        return config_keys
    home = _home(config_keys)
    table = dict(_inside(config_keys, home))
    kind = str(config_keys.get("model_type", ""))
    usual = defaults(str(table.get("model_type", kind)) if home else kind) or defaults(f"{_family(kind)}_text") or known
    for word, value in catalog_words.items():
        names = WORDS[word]
        if word == "mtp" and value == 0 and not any(name in table or name in usual for name in names):
            continue  # models of this type predict one token anyway
        name = next(
            (name for name in names if name in table), next((name for name in names if name in usual), names[0])
        )
        if word == "layers":
            _cut(table, table.get(name, usual.get(name)), value)
            stacks = [stack for stack in STACKS if stack in table or stack in usual]
            table |= dict.fromkeys(stacks, value)
            name = stacks[0] if stacks else name
        table[name] = value
    return _with(config_keys, home, table)


def _family(kind: str) -> str:
    return kind.removesuffix("_thinker")


def _home(data: JsonMapping) -> tuple[str, ...]:
    """Where a config keeps the keys of its language model: an omni model's thinker has a text of its own."""
    kind = str(data.get("model_type", ""))
    if isinstance(data.get("text_config"), Mapping):
        return ("text_config",)
    if kind in THINKING:
        return ("thinker_config", "text_config")
    flat = any(name in data for name in WORDS["hidden"]) or defaults(kind)
    return ("text_config",) if not flat and defaults(f"{_family(kind)}_text") else ()


def _inside(data: JsonMapping, path: tuple[str, ...]) -> JsonMapping:
    for key in path:
        below = data.get(key)
        data = below if isinstance(below, Mapping) else {}
    return data


def _with(data: JsonMapping, path: tuple[str, ...], table: JsonObject) -> JsonObject:
    if not path:
        return table
    below = data.get(path[0])
    inner = below if isinstance(below, Mapping) else {}
    return {**data, path[0]: _with(inner, path[1:], table)}


def _cut(table: JsonObject, before: object, after: object) -> None:
    """Lists with a word for each layer, cut to the layers that are left."""
    if not isinstance(before, int) or not isinstance(after, int) or before == after:
        return
    for key, value in table.items():
        if not isinstance(value, list) or len(value) != before:
            continue
        if after > before:
            expectation = f"at most {before}, the layers that {key} lists"
            raise InputError(Problem(path="layers", given=str(after)[:20], expected=expectation, todo=f"set {key} too"))
        table[key] = value[:after]
