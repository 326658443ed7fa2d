"""Turn a catalog model into its Numerics: what changes no step's cost and has to be right for the model to train.

A model that was read from a config.json brings its own; of the catalog's models, `numerics.toml` has them by id.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.files import read_table
from ridgeline.core.table import decode
from ridgeline.models.spec import Attention, LatentAttention, ModelSpec, Moe, Numerics, RotaryScaling, Router

__all__ = ["Numerics", "RotaryScaling", "Router", "numerics_of", "unknown_numerics"]

FILE = Path(__file__).parent / "numerics.toml"


@cache
def _catalog_numerics() -> Mapping[str, Numerics]:
    groups = [decode(Numerics, table, name) for name, table in read_table(FILE).data.items()]
    return MappingProxyType({id: group for group in groups for id in group.models})


def numerics_of(model: ModelSpec) -> Numerics:
    """What is known of a model: as its config.json says, or as the catalog does; of others nothing.

    >>> from ridgeline.models.load import MODELS
    >>> numerics_of(MODELS["llama3-8b"]).rotary_base, numerics_of(MODELS["deepseek-v3"]).router.scale
    (500000.0, 2.5)
    """
    return model.numerics or _catalog_numerics().get(model.id, Numerics())


def unknown_numerics(model: ModelSpec) -> tuple[str, ...]:
    """What a model has and the catalog does not know.

    >>> from ridgeline.models.load import MODELS
    >>> unknown_numerics(MODELS["llama3-8b"]), unknown_numerics(MODELS["gpt3-175b"])
    ((), ('norm epsilon',))
    """
    numerics, mixers = numerics_of(model), [block.mixer for block in model.blocks]
    turns = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    turns = turns or any(isinstance(mixer, Attention) and mixer.positions == "rope" for mixer in mixers)
    experts = any(isinstance(block.ffn, Moe) for block in model.blocks)
    questions = (
        ("rotary base", turns and numerics.rotary_base is None),
        ("norm epsilon", numerics.norm_eps is None),
        ("router", experts and numerics.router is None),
    )
    return tuple(name for name, missing in questions if missing)
