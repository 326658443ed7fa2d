"""What every serving engine is told alike of a plan's formats and graphs, in the words of each.

dtype          the format of activations, and of weights that a checkpoint has so
quantization   weights that the engine makes narrower while it loads them, where it can
kv cache       `auto` is the format of activations
graphs         decode steps replay graphs, nothing is compiled, unless told
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say

COMPUTE, WEIGHTS, ACTIVATIONS = (f"plan.precision.{name}" for name in ("compute", "weights", "activations"))
SCALING, KV = "plan.precision.scaling", "plan.precision.kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatWords:
    """The words of one engine.

    title      what people call it
    dtype      its option for the format of activations, and that option's word for each of our formats
    kv_dtype   the same of the KV cache
    """

    title: str
    dtype: str
    dtypes: Mapping[str, str]
    kv_dtype: str
    kv_dtypes: Mapping[str, str]


def wide_format(scenario: Scenario, words: FormatWords) -> str:
    """The format that an engine is asked to compute in: that of activations, bf16 where it has no word for it."""
    activations = scenario.plan.precision.activations.id
    return activations if activations in words.dtypes else "bf16"


def format_pieces(scenario: Scenario, words: FormatWords, quantised: Say | None = None) -> Iterator[Piece]:
    """Weights as a checkpoint has them; `quantised` is what is said where the engine narrows them while it loads."""
    precision, wide = scenario.plan.precision, wide_format(scenario, words)
    given = {COMPUTE: precision.compute.id, WEIGHTS: precision.weights.id, ACTIVATIONS: precision.activations.id}
    yield Say(words.dtype, words.dtypes[wide], *([ACTIVATIONS] if given[ACTIVATIONS] == wide else []))
    if given[COMPUTE] == given[WEIGHTS] == wide:
        yield Say(words.dtype, words.dtypes[wide], COMPUTE, WEIGHTS)
    elif quantised is not None:
        yield quantised
    else:
        why = f"a checkpoint in such a format says so in its config.json, and {words.title} reads it there: use one"
        for path, value in given.items():
            if value != wide:
                yield Lose(path, f"{why} as MODEL", yours=True)
    if quantised is None or SCALING not in quantised.paths:
        yield Lose(SCALING, "which values share a scale follows from the method")
    for path in given:
        yield Fixed(path, wide, "products are multiplied as weights are stored")


def cache_format(scenario: Scenario, words: FormatWords) -> Iterator[Piece]:
    """The KV cache in the format of activations, or in one that the engine has a word for."""
    kv = scenario.plan.precision.kv.id
    if kv == scenario.plan.precision.activations.id:
        yield Say(words.kv_dtype, "auto", KV)
    elif kv in words.kv_dtypes:
        yield Say(words.kv_dtype, words.kv_dtypes[kv], KV)
    else:
        yield Lose(KV, f"the cache holds {', '.join(words.kv_dtypes)}: written as auto")


def graph_pieces(scenario: Scenario, *, eager: Say, compiled: Say) -> Iterator[Piece]:
    """How graphs are turned off and compilation on."""
    if scenario.plan.switches.graph == "none":
        yield eager
    yield Fixed("plan.graph", "full", "decode steps replay graphs")
    if scenario.plan.switches.compiled:
        yield compiled
    yield Fixed("plan.compiled", False, "not compiled unless told")
