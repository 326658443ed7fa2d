"""Turn whatever names a model (a catalog id, a path, a table of dimensions) into a ModelSpec.

A name is spelled as papers, leaderboards and logs do. It is tried as it stands; while the catalog does not know it, the
first rule of `RULES` that applies takes one suffix away. So a catalog alias always wins over a rule, and a name no rule
can reach stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.catalog import Catalog, overlay
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.core.records import dataclass
from ridgeline.core.table import given_text
from ridgeline.models.attention_words import spell_model
from ridgeline.models.dimensions import read_dimensions
from ridgeline.models.spec import ModelSpec

MODELS: Catalog[ModelSpec] = Catalog("model", Path(__file__).parent / "catalog", read_dimensions)
LONGEST = 200  # characters; nothing longer is a name
UNCHANGED: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """One way people decorate a name: what it means, the pattern it has, what to put in its place."""

    means: str
    pattern: re.Pattern[str]
    put: str = ""

    def apply(self, text: str) -> str:
        """The name without this decoration; the same text when it has none."""
        return self.pattern.sub(self.put, text).strip()


def _rule(means: str, pattern: str, put: str = "") -> NameRule:
    return NameRule(means=means, pattern=re.compile(pattern, re.IGNORECASE | re.ASCII), put=put)


RULES: tuple[NameRule, ...] = (
    _rule("what the run was for, in brackets", r"\s*\([^()]*\)$"),
    _rule("two checkpoints of one shape", r"^(.*[\w.]+-?[a-z]\d+)/[a-z]\d+$", r"\1"),
    _rule("MLPerf accuracy target", r"-99(\.9)?$"),
    _rule("number format of the weights", r"[-_ ](bf16|fp16|fp8|fp4|nvfp4|mxfp4|mxfp8|int8|int4|awq|gptq|w4a16|w8a8)$"),
    _rule("checkpoint format", r"[-_ ](hf|dynamic|kv|eagle)$"),
    _rule("date of a checkpoint", r"[-_ ](0[1-9]|1[0-2]|2[4-6])\d\d$"),
    _rule("what it was tuned for", r"[-_ ](instruct|chat|base|it|pt|thinking|terminus|exp)(?=(-v[\d.]+)?$)"),
    _rule("context it was extended to", r"[-_ ]\d{1,4}k$"),
    _rule("version of a checkpoint", r"-v[\d.]+$"),
)
_TRUNCATED = re.compile(r"\s*,?\s*\(?truncated to (\d{1,4}) layers?\)?", re.IGNORECASE | re.ASCII)


def find_name(text: str) -> tuple[str, Mapping[str, int]] | None:
    """The catalog id a name means and the top-level dimensions it changes; None where it means none.

    >>> find_name("nvidia/Llama-3.1-8B-Instruct-FP8")
    ('llama3.1-8b', mappingproxy({}))
    """
    if len(text) > LONGEST or not text.isprintable():
        return None
    cut = _TRUNCATED.search(text)
    changes = MappingProxyType({"layers": int(cut.group(1))}) if cut else UNCHANGED
    name = (text[: cut.start()] + text[cut.end() :] if cut else text).strip()
    while name:
        id = MODELS.resolve(name)
        if id is not None:
            return id, changes
        name = next((shorter for rule in RULES if (shorter := rule.apply(name)) != name), "")
    return None


__all__ = ["MODELS", "model"]


def model(ref: str | Path | JsonMapping) -> ModelSpec:
    """The model that `ref` means.

        "llama3-8b"                              a catalog id
        "runs/config.json", "runs/", Path(...)   a Hugging Face config, or the folder that holds one
        "mine.toml"                              a table of dimensions (see `ridgeline.models.dimensions`)
        "meta-llama/Llama-3.1-8B-Instruct"       an alias or a decorated name (see `ridgeline.models.load`)
        {"base": "llama3.1-405b", "layers": 8}   a table of dimensions; `base` starts from a catalog entry
        {"model_type": "llama", ...}             a Hugging Face config already in memory

    They are tried in this order, so a file that exists wins over an alias and a catalog id wins over both.

    >>> model("llama3-8b").hidden, model({"base": "llama3.1-405b", "layers": 8}).layers
    (4096, 8)
    """
    if isinstance(ref, Mapping):
        return _from_mapping(ref)
    if not isinstance(ref, (str, Path)):
        expectation = "a catalog id, a path or a table of dimensions"
        raise InputError(Problem(path="model", given=given_text(ref), expected=expectation))
    if isinstance(ref, str) and _is_id(ref):
        return MODELS[ref]
    path = _existing(ref)
    if path is not None:
        return _from_path(path)
    catalog_name = find_name(ref) if isinstance(ref, str) else None
    if catalog_name is None:
        todo = "no file or folder has that name either; `ridgeline show models` lists the catalog"
        raise UnknownId("model", str(ref)[:LONGEST], MODELS, todo)
    id, changes = catalog_name
    return _from_mapping({"base": id, **changes}) if changes else MODELS[id]


def _is_id(name: str) -> bool:
    """Whether it is spelled exactly as a catalog id; looks at one file name only."""
    plain = 0 < len(name) <= LONGEST and name.isascii() and name.replace("-", "").replace(".", "").isalnum()
    return plain and MODELS.resolve(name) == name


def _existing(ref: str | Path) -> Path | None:
    path = Path(ref)
    try:
        return path if str(ref) and path.exists() else None
    except (OSError, ValueError):  # a name no file system takes
        return None


def model_table(path: Path) -> JsonObject:
    """A model file as a table that stands on its own: a Hugging Face config, also by its folder, or dimensions."""
    from ridgeline.core.files import read_layers, read_table

    if path.is_dir() or path.suffix.lower() == ".json":
        return dict(read_table(path / "config.json" if path.is_dir() else path).data)
    table = read_layers(path, _merge_tables).data
    return table if "base" in table else {"name": path.stem, **table}


def _from_path(path: Path) -> ModelSpec:
    if path.is_dir() or path.suffix.lower() == ".json":
        from ridgeline.models import hf  # a catalog id never pays for it

        return hf.read_config(path)
    from ridgeline.core.files import read_layers

    table = read_layers(path, _merge_tables)
    try:
        return _from_mapping(table.data, id=path.stem)
    except UnknownId:
        raise
    except InputError as wrong:
        raise InputError(tuple(table.locate(problem) for problem in wrong.problems)) from None


def _from_mapping(table: JsonMapping, id: str = "") -> ModelSpec:
    if "model_type" in table or "_class_name" in table:
        from ridgeline.models import hf

        return hf.from_config(table, id=id)
    changes = {key: value for key, value in table.items() if key != "base"}
    if "base" not in table:
        return read_dimensions(id or str(table.get("name") or "given"), changes)
    path = _existing(table["base"]) if isinstance(table["base"], str) else None
    if path is not None and path.is_file() and not _is_id(table["base"]):
        from ridgeline.core.files import read_layers

        return _from_mapping(_merge_tables(read_layers(path, _merge_tables).data, changes), id=id or path.stem)
    base, also = _base(table["base"])
    changes = {**also, **changes}
    if not changes:
        return MODELS[base]
    below = {key: value for key, value in MODELS.table(base).items() if key != "aliases"}
    label = f"{base} with {', '.join(_change_words(changes))}"
    problems: list[Problem] = []
    changes = spell_model(changes, below, "", problems)
    if problems:
        raise InputError(problems)
    return read_dimensions(id or label, _merge_tables(below, {"name": label, **changes}))


def _base(name: object) -> tuple[str, Mapping[str, int]]:
    if not isinstance(name, str):
        raise InputError(Problem(path="base", given=given_text(name), expected="a catalog id such as llama3-8b"))
    catalog_name = find_name(name)
    if catalog_name is None:
        raise UnknownId("model", name[:LONGEST], MODELS)
    return catalog_name


def _change_words(changes: JsonMapping) -> list[str]:
    """What a table changes, in words: numbers and the word of an attention with their value, the rest by name."""
    attention = changes.get("attention")
    word = attention.get("kind") if isinstance(attention, Mapping) else attention
    values = {**changes, "attention": word} if isinstance(word, str) else changes
    return sorted(
        f"{key}={value}" if isinstance(value, int) or (key == "attention" and value is word) else str(key)
        for key, value in values.items()
    )


def _merge_tables(below: JsonMapping, above: JsonMapping) -> JsonObject:
    """`below` overlaid with `above`; a table of another `kind` replaces the one below."""
    return overlay(below, above, lambda under, over: over.get("kind", under.get("kind")) != under.get("kind"))
