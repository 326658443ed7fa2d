"""Turn a Hugging Face config.json into a ModelSpec, without transformers and without a network.

    read_config("path/to/model")     a folder with a config.json, or the file itself
    from_config({...})               the same from a table already in memory
    READERS                          the reader of each model_type

A key that a reader does not understand and that may change the architecture is an error that names it. A type without a
reader is captured from the model that an installed transformers builds of it (`generic`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import DEEPEST, read_text
from ridgeline.models.hf.audio_lm import HEARING, OMNI
from ridgeline.models.hf.config import Config, defaults, in_its_keys, quote_value
from ridgeline.models.hf.diffusion import DIFFUSION
from ridgeline.models.hf.encoder import ENCODERS
from ridgeline.models.hf.multimodal import MULTIMODAL
from ridgeline.models.hf.numerics import numerics_from
from ridgeline.models.hf.parts import Reader, decoder_head
from ridgeline.models.hf.text import TEXT
from ridgeline.models.hf.vision import as_processed
from ridgeline.models.spec import ModelSpec

READERS: Mapping[str, Reader] = MappingProxyType({**TEXT, **MULTIMODAL, **HEARING, **OMNI, **ENCODERS})
BIGGEST_CONFIG = 8 * 1024 * 1024  # bytes; most are a few kilobytes, one that lists every quantised module is 3 million


def read_config(path: Path | str, *, id: str = "", ignore: Collection[str] = ()) -> ModelSpec:
    """The model that a config.json describes; `path` is the file or the folder that holds it.

    The id is the name of the folder unless one is given. A preprocessor_config.json in the folder limits images.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    text = read_text(file, BIGGEST_CONFIG)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        given_text = str(wrong) if isinstance(wrong, json.JSONDecodeError) else "numbers or nesting out of bounds"
        raise InputError(Problem(path="", given=given_text, expected="JSON", where=str(file))) from None
    spec = from_config(data, id=id or file.resolve().parent.name, ignore=ignore)
    return replace(as_processed(spec, file.parent), source=str(file))


def from_config(data: JsonMapping, *, id: str = "", ignore: Collection[str] = ()) -> ModelSpec:
    """The model that a config describes, or an `InputError` with everything in it that cannot be used.

    `ignore` names keys of the top level that the caller knows to be irrelevant to the shape.

    >>> spec = from_config({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    ...                     "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    ...                     "vocab_size": 128256, "rope_theta": 500000.0}, id="llama3-8b")
    >>> spec.layers, spec.blocks[0].mixer.kv_heads
    (32, 8)
    >>> from_config({"model_type": "lama"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ridgeline.core.errors.UnknownId: model_type: got 'lama', expected one of llama, ...
    """
    if not isinstance(data, Mapping) or _too_deep(data):
        raise InputError(
            Problem(path="", given=quote_value(type(data).__name__), expected="a table of keys, not too deep")
        )
    kind = data.get("model_type")
    class_name = data.get("_class_name")
    if kind is None and isinstance(class_name, str) and class_name in DIFFUSION:
        return _diffusion(data, class_name, id, ignore)
    if not isinstance(kind, str):
        raise InputError(_of_no_type(data, kind))
    reader = READERS.get(kind)
    if reader is None:
        from ridgeline.models.hf.generic import capture_config  # most configs never pay for it

        return replace(capture_config(data, READERS, id), numerics=numerics_from(data))
    cfg = Config(in_its_keys(data), defaults(kind))
    cfg.ignore(*ignore)
    spec = decoder_head(cfg, reader(cfg))
    cfg.finish()
    return replace(spec, id=id or kind, name=id or kind, numerics=numerics_from(data))


def _diffusion(data: JsonMapping, named: str, id: str, ignore: Collection[str]) -> ModelSpec:
    """The diffusion transformer that diffusers' own config describes."""
    cfg = Config(in_its_keys(data, defaults(named)), defaults(named))
    cfg.ignore("_class_name", "_diffusers_version", *ignore)
    spec = DIFFUSION[named](cfg)
    cfg.finish()
    return replace(spec, id=id or named, name=id or named)


def _of_no_type(data: JsonMapping, kind: object) -> Problem:
    """What a config without a model_type seems to be."""
    class_name = data.get("_class_name")
    if isinstance(class_name, str):
        given_text = f"a diffusers config of {quote_value(class_name)}"
        expectation = f"a model_type, or one of the classes {', '.join(DIFFUSION)}"
        todo = "record it with ridgeline capture, or describe a transformer of the same dimensions"
        return Problem(path="_class_name", given=given_text, expected=expectation, todo=todo)
    if {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"} & set(data):
        expectation = "the config.json of a model"
        return Problem(path="model_type", given="a DeepSpeed config", expected=expectation, todo="try ridgeline import")
    return Problem(path="model_type", given=quote_value(kind), expected="a string", todo="add it")


def _too_deep(data: JsonMapping) -> bool:
    """Whether tables and lists nest deeper than any config does; walks without recursion."""
    level: list[Mapping[str, object] | list[object] | tuple[object, ...]] = [data]
    for _ in range(DEEPEST):
        inner = [value.values() if isinstance(value, Mapping) else value for value in level]
        level = [item for items in inner for item in items if isinstance(item, (Mapping, list, tuple))]
        if not level:
            return False
    return True
