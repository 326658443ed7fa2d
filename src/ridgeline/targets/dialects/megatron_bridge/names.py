"""Which field of Megatron-Bridge's ConfigContainer carries which of Megatron's options: one table, read both ways."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping
from ridgeline.targets.tables import values, word_lists, words

ID = "megatron-bridge"

# Megatron option (without dashes) -> field, where the value is the same
FIELDS = words("megatron-bridge", "fields")
# fields that are not guessed where only running the recipe would tell them
NEEDED = frozenset(
    {
        *(FIELDS[f"{axis}-model-parallel-size"] for axis in ("tensor", "pipeline", "expert")),
        *(FIELDS[name] for name in ("context-parallel-size", "expert-tensor-parallel-size", "num-layers")),
        *(FIELDS[name] for name in ("micro-batch-size", "global-batch-size", "seq-length", "recompute-granularity")),
        *(FIELDS[name] for name in ("use-megatron-fsdp", "use-distributed-optimizer", "hidden-size")),
        "dataset.seq_length",
        "peft",
    }
)
# option -> field whose value is the opposite of the flag
OPPOSITE = words("megatron-bridge", "opposite")
# field -> others that have to say the same: settings are kept twice, and one of two that is on turns both on
TWINS = word_lists("megatron-bridge", "twins")
# switches that the common recipe turns on: each has to be said either way
ALWAYS = words("megatron-bridge", "always")
DTYPES: Mapping[str, str] = MappingProxyType(
    {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
)
_FP8: JsonMapping = {"fp8-format": "hybrid", "fp8-param-gather": True}
# what the named mixed-precision recipes set
RECIPES = values("megatron-bridge", "recipes")
ACTIVATIONS: Mapping[str, str] = MappingProxyType({"squared-relu": "squared_relu", "quick-geglu": "quick_gelu"})
# what recipes/common.py @0eca073e sets before a recipe changes it
COMMON = values("megatron-bridge", "common")
# what adapters stand beside -> its name in a layer
LORA = {"qkv": "linear_qkv", "out": "linear_proj", "up": "linear_fc1", "gate": "linear_fc1", "down": "linear_fc2"}
