"""Where verl keeps what the actor's update is told, and its words for models and adapters."""

from __future__ import annotations

import re

from ridgeline.models.load import MODELS
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.tables import word_lists

ID = "verl"

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
MEGATRON = f"{ACTOR}.megatron"
LAYER = f"{MEGATRON}.override_transformer_config"
DDP = f"{MEGATRON}.override_ddp_config"
FSDP = f"{ACTOR}.fsdp_config"
OPTIM = f"{ACTOR}.optim"
# by whether the backend is Megatron: a plan's target -> names of modules
LORA_NAMES = {False: word_lists(ID, "lora"), True: word_lists(ID, "lora_megatron")}


def weights_of(model: ModelSpec) -> str | None:
    """The published weights that the catalog took the model from.

    >>> weights_of(MODELS["qwen3-8b"]), weights_of(MODELS["megatron-22b"])
    ('Qwen/Qwen3-8B', None)
    """
    match = re.match(r"config\.json of ([\w.-]+/[\w.-]+)", model.source)
    if match is None or model.id not in MODELS or MODELS[model.id] != model:
        return None
    return match.group(1)
