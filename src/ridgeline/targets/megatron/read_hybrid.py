"""Turn a hybrid pattern of Megatron-Core (`M-M*E`) into the kinds of layers it spells, in order.

M mamba    G gated delta net    * attention    D sparse attention    + latent attention    - mlp    E experts
| begins a pipeline segment     / begins a layer of multi-token prediction
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.option_reader import OptionReader

LONGEST = 2000
LAYERS = frozenset("MG*D+-E")


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPattern:
    """Layers by symbol, how many each pipeline segment holds, and the layers that predict further tokens."""

    layers: str
    segments: tuple[int, ...]
    ahead: tuple[str, ...]


def hybrid_pattern(reader: OptionReader) -> HybridPattern | None:
    """The pattern that the options give; None for a model without one.

    >>> from ridgeline.core.files import Table
    >>> found = hybrid_pattern(OptionReader(Table(data={"hybrid-layer-pattern": "M-|M*/*E"}, source="")))
    >>> found.layers, found.segments, found.ahead
    ('M-M*', (2, 2), ('*E',))
    """
    given = reader.take("hybrid-layer-pattern", "hybrid-override-pattern")
    reader.take("is-hybrid-model")
    if given is None:
        for name in ("hybrid-attention-ratio", "hybrid-mlp-ratio"):
            if name in reader:
                expected = "a hybrid model spelled by --hybrid-layer-pattern"
                raise InputError(Problem(path=f"--{name}", given=str(reader.options[name])[:40], expected=expected))
        return None
    text = str(given).replace(" ", "")
    main, *ahead = text.split("/")
    parts = main.split("|")
    if len(text) > LONGEST or not main or set("".join((*parts, *ahead))) - LAYERS:
        expected = "layers spelled by M, G, *, D, +, - and E"
        raise InputError(Problem(path="--hybrid-layer-pattern", given=repr(text[:60]), expected=expected))
    return HybridPattern(layers="".join(parts), segments=tuple(len(part) for part in parts), ahead=tuple(ahead))


def mamba(reader: OptionReader, hidden: int) -> dict[str, Any]:
    """The state-space mixer, by Megatron-Core's defaults where the options are silent."""
    size = reader.count("mamba-head-dim", default=64) or 64
    return {
        "kind": "mamba2",
        "heads": reader.count("mamba-num-heads") or max(1, 2 * hidden // size),
        "head_dim": size,
        "state": reader.count("mamba-state-dim", default=128),
        "groups": reader.count("mamba-num-groups", default=8),
    }


def linear(reader: OptionReader) -> dict[str, Any]:
    """The gated delta net."""
    names = {"key_heads": ("linear-num-key-heads", 16), "value_heads": ("linear-num-value-heads", 32)}
    names |= {"key_dim": ("linear-key-head-dim", 128), "value_dim": ("linear-value-head-dim", 128)}
    found = {key: reader.count(name, default=value) for key, (name, value) in names.items()}
    conv = reader.count("linear-conv-kernel-dim", default=4)
    return {"kind": "gated-delta", **found, **({"conv": conv} if conv != 4 else {})}


def spelled(pattern: str, kinds: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The parts of every layer that a pattern spells."""
    for symbol in pattern:
        if not kinds[symbol]:
            expected = "a pattern whose layers the options describe"
            raise InputError(Problem(path="--hybrid-layer-pattern", given=f"a layer {symbol}", expected=expected))
        yield kinds[symbol]
