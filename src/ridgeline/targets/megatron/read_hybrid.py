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
CORE = "megatron.core."  # modules whose layers the symbols stand for


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
    state_space = reader.switch("is-hybrid-model", default=False)
    shares = [reader.share(f"hybrid-{part}-ratio", default=0.0) for part in ("attention", "mlp")]
    if given is None and (state_space or any(shares)):
        given = spread(reader.count("num-layers") or 0, *shares)
    if given is None:
        return None
    _refuse_own_layers(reader)
    text = str(given).replace(" ", "")
    main, *ahead = text.split("/")
    parts = main.split("|")
    if len(text) > LONGEST or not main or set("".join((*parts, *ahead))) - LAYERS:
        expected = "layers spelled by M, G, *, D, +, - and E"
        raise InputError(Problem(path="--hybrid-layer-pattern", given=repr(text[:60]), expected=expected))
    return HybridPattern(layers="".join(parts), segments=tuple(len(part) for part in parts), ahead=tuple(ahead))


def _refuse_own_layers(reader: OptionReader) -> None:
    """An `InputError` where a module outside of Megatron-Core builds the layers that the symbols stand for."""
    module = reader.options.get("spec")
    name = str(module[0] if isinstance(module, (list, tuple)) and module else module or "").split(" ")[0]
    if name.startswith(CORE) or not name or name.endswith("mamba_layer_specs"):
        reader.take("spec")
        return
    given, expected = f"layers that {name[:80]} builds", "layers that the options spell"
    raise InputError(Problem(path="--spec", given=given, expected=expected, todo="name the model with --model"))


def spread(layers: int, attention: float, mlp: float) -> str | None:
    """The pattern of so many layers with shares of attention and of mlp, the rest Mamba, as Megatron-Core deals them.

    Attention stands between stretches of Mamba of equal length; every stretch of Mamba layers between two mlps is as
    long as the next.

    >>> spread(8, 0.25, 0.0), spread(8, 0.125, 0.5)
    ('MM*MM*MM', 'M-M-*-M-')
    """
    if not 0 < layers <= LONGEST:
        return None
    found = ["M"] * layers
    attends, dense = round(layers * attention), round(layers * mlp)
    left = length = (layers - attends) / (attends + 1)
    for at in range(layers):
        found[at], left = ("*", left + length) if left < 0.5 else ("M", left - 1)
    if dense:
        left = length = (layers - attends - dense) / dense
        for at in (at for at in range(layers) if found[at] == "M"):
            found[at], left = ("-", left + length) if left < 0.5 else ("M", left - 1)
    return "".join(found)


def mamba(reader: OptionReader, hidden: int) -> dict[str, Any]:
    """The state-space mixer, by Megatron-Core's defaults where the options are silent."""
    size = reader.count("mamba-head-dim", default=64) or 64
    return {
        "kind": "mamba2",
        "heads": reader.count("mamba-num-heads") or max(1, 2 * hidden // size),
        "head_dim": size,
        "state": reader.count("mamba-state-dim", default=128),
        "groups": reader.count("mamba-num-groups", default=8),
        **({"chunk": chunk} if (chunk := reader.count("mamba-chunk-size")) else {}),
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
