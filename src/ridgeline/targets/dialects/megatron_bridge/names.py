"""Which field of Megatron-Bridge's ConfigContainer carries which of Megatron's options: one table, read both ways."""

from __future__ import annotations

from ridgeline.targets.tables import names, values, word_lists, words

ID = "megatron-bridge"

FIELDS = words(ID, "fields")  # Megatron option (without dashes) -> field, where the value is the same
# fields that are not guessed where only running the recipe would tell them
NEEDED = frozenset({*(FIELDS[option] for option in names(ID, "needed")), "dataset.seq_length", "peft"})
OPPOSITE = words(ID, "opposite")  # option -> field whose value is the opposite of the flag
# field -> others that have to say the same: settings are kept twice, and one of two that is on turns both on
TWINS = word_lists(ID, "twins")
ALWAYS = words(ID, "always")  # switches that the common recipe turns on: each has to be said either way
DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
RECIPES = values(ID, "recipes")  # what the named mixed-precision recipes set
ACTIVATIONS = {"squared-relu": "squared_relu", "quick-geglu": "quick_gelu"}
COMMON = values(ID, "common")  # what recipes/common.py @0eca073e sets before a recipe changes it
# what adapters stand beside -> its name in a layer
LORA = {"qkv": "linear_qkv", "out": "linear_proj", "up": "linear_fc1", "gate": "linear_fc1", "down": "linear_fc2"}
