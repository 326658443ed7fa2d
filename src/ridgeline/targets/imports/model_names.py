"""Turn the path or name that a run's files give a model into the catalog entry it means.

A path is tried as a whole, then by its parts from the last on, then by words inside a part
(`multiturn-sft-qwen-2.5-32b-instruct`): only words that go up to the last size of the part, so that what was distilled
from one model into another is not taken for the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.models.load import MODELS, find_name
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec

LONGEST = 200
UNKNOWN = "no catalog entry is it"
SIZE = re.compile(r"(\d{1,4}x)?\d{1,4}(\.\d{1,2})?[bm]|a\d{1,3}(\.\d{1,2})?b", re.IGNORECASE)
# words that make another model of what they stand beside
OTHERS = frozenset(
    {"distill", "distilled", "vl", "omni", "audio", "vision", "draft", "reward", "rm", "critic", "embedding", "pro"}
)
_DEFAULT = re.compile(r"\$\{oc\.env:\w{1,80},([^{}]{1,200})\}|\$\{\w{1,80}:-?([^{}]{1,200})\}")


def named_exactly(*names: str) -> str | None:
    """The catalog id that the first of these names means with nothing changed in it.

    >>> named_exactly("", "meta-llama/Llama-3.1-8B"), named_exactly("some-model")
    ('llama3.1-8b', None)
    """
    entries = (find_name(name) for name in names if name)
    return next((entry[0] for entry in entries if entry is not None and not entry[1]), None)


def with_depth(model: str | JsonObject | None, depth: int) -> str | JsonObject | None:
    """A model of the catalog, or a table that starts from one, with so many blocks that predict further tokens.

    >>> with_depth("deepseek-v3", 0), with_depth("llama3-8b", 0)
    ({'base': 'deepseek-v3', 'mtp': 0}, 'llama3-8b')
    """
    table = {"base": model} if isinstance(model, str) else dict(model or {})
    if table.get("base") not in MODELS:
        return model
    ahead = MODELS[table["base"]].mtp
    return model if depth == (ahead.depth if ahead else 0) else {**table, "mtp": depth}


def named_by(path: str) -> tuple[str, str] | None:
    """The catalog id that a path means, and what it was told by where that is only a part of a name.

    >>> named_by("$HOME/models/Qwen/Qwen2.5-7B-Instruct")
    ('qwen2.5-7b', '')
    >>> named_by("$PWD/checkpoint/multiturn-sft-qwen-2.5-32b-instruct/global_step_372")
    ('qwen2.5-32b', 'qwen-2.5-32b-instruct')
    """
    default = _DEFAULT.fullmatch(path)
    text = (default.group(1) or default.group(2) if default else path)[:LONGEST].strip("\"' ").rstrip("/")
    parts = [part for part in reversed(text.split("/")) if part and part not in (".", "..")]
    exact = named_exactly(text, *parts)
    spans = (span for part in parts for span in _spans(part))
    return (exact, "") if exact is not None else _named_by_span(spans)


def named_by_beginning(name: str) -> tuple[str, str] | None:
    """The catalog id that a name begins with, up to its last size at least, and that beginning.

    >>> named_by_beginning("org/Meta-Llama-3.1-405B-BNB-NF4-BF16")
    ('llama3.1-405b', 'Meta-Llama-3.1-405B')
    >>> named_by_beginning("cogito-v1-preview-qwen-14B") is None
    True
    """
    last = name[:LONGEST].rstrip("/").rpartition("/")[2]
    return _named_by_span(span for span in _spans(last) if last.startswith(span))


def _named_by_span(spans: Iterable[str]) -> tuple[str, str] | None:
    return next(((id, span) for span in spans if (id := named_exactly(span)) is not None), None)


def _spans(part: str) -> Iterator[str]:
    """Words of a name up to its last size and on, longest first; `qwen2_5_7b` may mean a version 2.5."""
    dotted_name = re.sub(r"(?<=\d)_(?=\d_)", ".", part)
    for text in dict.fromkeys((dotted_name, part)):
        yield from _spans_of([word for word in re.split(r"[-_ ]+", text) if word][:16])


def _spans_of(words: list[str]) -> Iterator[str]:
    if OTHERS & {word.lower() for word in words}:
        return
    sizes_found = [
        at for at, word in enumerate(words) if SIZE.fullmatch(word) or re.search(r"[a-z]-?\d[\d.]*b$", word, re.I)
    ]
    if not sizes_found:
        return
    last = sizes_found[-1]
    for start in range(last + 1):
        for end in range(len(words), last, -1):
            if end - start < len(words) or len(words) > 1:
                yield "-".join(words[start:end])


def known_as(table: JsonMapping, unsure: Iterable[str] = (), prefer: str = "") -> str | JsonMapping:
    """The catalog id of the model a table of dimensions describes, or the table itself when no entry equals it.

    Keys named as `unsure` were not stated by the source: an entry may differ in them, and then fills them in. Of
    several entries the preferred one is taken, or one that reads text alone, or the one with the shortest id.
    """
    try:
        spec = load_model(table)
    except InputError:
        return table  # told by whoever builds the scenario
    unsure = tuple(unsure)
    fits = [id for id in MODELS if _could_be(id, spec, unsure) and _equal(MODELS[id], spec, unsure)]
    if not fits:
        return table
    best = min(fits, key=lambda id: (id != prefer, *_sees(id, spec), MODELS[id].context != spec.context, len(id), id))
    if "context" in unsure or MODELS[best].context == spec.context:
        return best
    return {"base": best, "context": spec.context}


def _sees(id: str, spec: ModelSpec) -> tuple[bool, bool]:
    """Whether an entry reads images or sound where the table speaks of neither: it is another model."""
    return (MODELS[id].vision is not None) != (spec.vision is not None), MODELS[id].audio is not None


@cache
def _sizes(id: str) -> Mapping[str, int]:
    """A glance at the entry's file, so that few entries are built."""
    raw = MODELS.table(id)
    return {key: raw[key] for key in ("hidden", "layers", "vocab") if key in raw}


def _could_be(id: str, spec: ModelSpec, unsure: tuple[str, ...]) -> bool:
    sizes_given = {"hidden": spec.hidden, "layers": spec.layers, "vocab": spec.vocab}
    return all(key in unsure or sizes_given[key] == size for key, size in _sizes(id).items())


def _equal(entry: ModelSpec, spec: ModelSpec, unsure: tuple[str, ...]) -> bool:
    labels = {"id": "", "name": "", "source": "", "context": 0, "vision": None}
    if "vocab" in unsure:
        labels["vocab"] = 0
    if "mtp" in unsure:
        labels["mtp"] = None
    return replace(entry, **labels) == replace(spec, **labels)  # type: ignore[arg-type]
