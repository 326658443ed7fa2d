"""Turn a catalog model into its Numerics: what changes no step's cost and has to be right for the model to train.

They stand apart from the ModelSpec, which holds what a step costs; `numerics.toml` has them by catalog id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ridgeline.core.files import read_table
from ridgeline.core.table import decode
from ridgeline.models.spec import Attention, LatentAttention, ModelSpec, Moe

FILE = Path(__file__).parent / "numerics.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary positions are scaled beyond the context they were first trained on."""

    kind: Literal["llama3", "yarn"]
    factor: float
    first_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How experts are scored and picked.

    bias    a learned bias picks experts, in place of an auxiliary loss
    scale   what the weights of the picked experts are multiplied with
    """

    score: Literal["softmax", "sigmoid"]
    bias: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Rotary base (rope_theta) and scaling, norm epsilon, router; None where it is not known or there is none."""

    models: tuple[str, ...] = ()
    rotary_base: float | None = None
    rotary_scaling: RotaryScaling | None = None
    norm_eps: float | None = None
    router: Router | None = None


@cache
def _known() -> Mapping[str, Numerics]:
    groups = [decode(Numerics, table, name) for name, table in read_table(FILE).data.items()]
    return MappingProxyType({id: group for group in groups for id in group.models})


def numerics_of(model: ModelSpec) -> Numerics:
    """What is known of a model; of one that is in no catalog, nothing.

    >>> from ridgeline.models.load import MODELS
    >>> numerics_of(MODELS["llama3-8b"]).rotary_base, numerics_of(MODELS["deepseek-v3"]).router.scale
    (500000.0, 2.5)
    """
    return _known().get(model.id, Numerics())


def unknown_numerics(model: ModelSpec) -> tuple[str, ...]:
    """What a model has and the catalog does not know.

    >>> from ridgeline.models.load import MODELS
    >>> unknown_numerics(MODELS["llama3-8b"]), unknown_numerics(MODELS["gpt3-175b"])
    ((), ('norm epsilon',))
    """
    found, mixers = numerics_of(model), [block.mixer for block in model.blocks]
    turns = any(isinstance(one, LatentAttention) for one in mixers)
    turns = turns or any(isinstance(one, Attention) and one.positions == "rope" for one in mixers)
    experts = any(isinstance(block.ffn, Moe) for block in model.blocks)
    asked = (
        ("rotary base", turns and found.rotary_base is None),
        ("norm epsilon", found.norm_eps is None),
        ("router", experts and found.router is None),
    )
    return tuple(name for name, missing in asked if missing)
