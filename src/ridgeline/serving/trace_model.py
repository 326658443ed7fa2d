"""Turn a model of the catalog into the sizes that tell what the kernels of its trace compute; and a trace into a model.

A trace of an engine seldom names its model, but shows some of its sizes: the layers by the attention kernels of a step,
the vocabulary and the hidden width by operands that were recorded outside of graphs. Where they are those of one model
only, up to a degree of tensor parallelism, that is taken; of several, the one that the name of the trace's file names.
"""

from __future__ import annotations

import re

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import MODELS
from ridgeline.models.load import model as from_catalog
from ridgeline.models.spec import Attention, Mlp, ModelSpec, Moe
from ridgeline.trace import Inference, ServedModel, Timeline

DEGREES = (1, 2, 4, 8, 16)


def served_model(named: str | ModelSpec) -> ServedModel:
    """The sizes of a model, by id or ID:TP; an `InputError` for one whose layers are not all attention with one ffn.

    >>> served_model("qwen3-8b:2").query
    2048
    """
    id, _, degree = named.partition(":") if isinstance(named, str) else (named, "", "")
    spec = from_catalog(id) if isinstance(id, str) else id
    if degree and not (degree.isdecimal() and 0 < int(degree) < 1024):
        raise InputError(Problem(path="model", given=repr(named), expected="ID or ID:TP with a tensor-parallel degree"))
    found = _sizes(spec, int(degree or 1))
    if found is None:
        expected = "layers of plain attention and one sort of ffn without shared experts"
        todo = "record the capture of its graphs and name it with --capture"
        raise InputError(Problem(path="model", given=spec.id, expected=expected, todo=todo))
    return found


def _sizes(spec: ModelSpec, tp: int) -> ServedModel | None:
    blocks = [spec.blocks[place] for place in spec.order]
    mixers = {block.mixer for block in blocks}
    ffns = {block.ffn for block in blocks}
    plain = [one for one in mixers if isinstance(one, Attention)]
    if (
        any(block.beside for block in blocks)
        or len(plain) != len(mixers)
        or len({(one.heads, one.kv_heads, one.head_dim) for one in plain}) != 1
    ):
        return None
    ffn = next(iter(ffns))
    if len(ffns) != 1 or not isinstance(ffn, Mlp | Moe) or not ffn.gated:
        return None
    if isinstance(ffn, Moe) and ffn.shared_hidden:
        return None
    dense = isinstance(ffn, Mlp)
    return ServedModel(
        name=spec.id, layers=len(spec.order), hidden=spec.hidden, heads=plain[0].heads, kv_heads=plain[0].kv_heads,
        head_dim=plain[0].head_dim, vocab=spec.vocab, ffn=ffn.hidden if dense else 0,
        experts=ffn.experts if isinstance(ffn, Moe) else 0, chosen=ffn.topk if isinstance(ffn, Moe) else 0,
        expert_ffn=0 if dense else ffn.hidden, tp=tp,
        windows=tuple(block.mixer.window for block in blocks if isinstance(block.mixer, Attention)),
    )  # fmt: skip


def likely_models(line: Timeline, engine: Inference | None) -> tuple[ServedModel, ...]:
    """Models of the catalog whose layers and recorded sizes a timeline shows; those of equal sizes once."""
    layers = engine.layers(line) if engine is not None else set()
    if not layers:
        return ()
    shown = {one for shape in line.detail.shapes for dims in shape.dims for one in dims if isinstance(one, int)}
    catalog = (_sizes(from_catalog(id), tp) for id in MODELS for tp in DEGREES)
    found = [one for one in catalog if one and one.layers in layers and one.vocab // one.tp in shown]
    both = [one for one in found if one.hidden in shown] or found
    sizes: dict[tuple[int, ...], ServedModel] = {}
    for one in both:
        sizes.setdefault((one.hidden, one.query, one.keys, one.ffn, one.expert_ffn, one.experts), one)
    return tuple(sizes.values())


def likely_model(line: Timeline, engine: Inference | None) -> ServedModel | None:
    """The only model of the catalog that a timeline can be of, or that its file names; None for none or several."""
    found = likely_models(line, engine)
    text = _plain(" ".join(line.about.sources))
    named = [one for one in found if _plain(one.name) in text]
    chosen = found if len(found) == 1 else named
    return chosen[0] if len(chosen) == 1 else None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
