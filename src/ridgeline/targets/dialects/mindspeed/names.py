"""Which words of MindSpeed-LLM mean what, where they are not Megatron's."""

from __future__ import annotations

from ridgeline.targets.tables import words

ID = "mindspeed"

# Megatron's name -> MindSpeed's, where only the name differs
RENAMED = words("mindspeed", "renamed")
# a part of a layer -> the flag that recomputes it
PARTS = {
    "norm": "--recompute-norm",
    "activation": "--recompute-activation-function",
    "latent-up": "--recompute-mla-up-proj",
}
# Megatron's cp-comm-type -> context-parallel-algo
ALGORITHMS = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo"}
