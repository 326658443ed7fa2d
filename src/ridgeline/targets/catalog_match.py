"""Turn a table of dimensions into the catalog entry that it equals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.models.load import MODELS
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec


def known_as(table: Mapping[str, Any], unsure: Iterable[str] = (), prefer: str = "") -> str | Mapping[str, Any]:
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
    given = {"hidden": spec.hidden, "layers": spec.layers, "vocab": spec.vocab}
    return all(key in unsure or given[key] == size for key, size in _sizes(id).items())


def _equal(entry: ModelSpec, spec: ModelSpec, unsure: tuple[str, ...]) -> bool:
    labels = {"id": "", "name": "", "source": "", "context": 0, "vision": None}
    if "vocab" in unsure:
        labels["vocab"] = 0
    if "mtp" in unsure:
        labels["mtp"] = None
    return replace(entry, **labels) == replace(spec, **labels)  # type: ignore[arg-type]
