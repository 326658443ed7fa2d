"""Which words of MindSpeed-LLM mean what, where they are not Megatron's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ID = "mindspeed"

# Megatron's name -> MindSpeed's, where only the name differs
RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "--multi-latent-attention": "--multi-head-latent-attention",
        "--qk-head-dim": "--qk-nope-head-dim",
        "--qk-pos-emb-head-dim": "--qk-rope-head-dim",
        "--moe-router-num-groups": "--n-group",
        "--moe-router-group-topk": "--topk-group",
        "--rotary-scaling-factor": "--rope-scaling-factor",
        "--mscale": "--rope-scaling-mscale",
        "--mscale-all-dim": "--rope-scaling-mscale-all-dim",
        "--yarn-beta-fast": "--rope-scaling-beta-fast",
        "--yarn-beta-slow": "--rope-scaling-beta-slow",
        "--moe-router-topk-scaling-factor": "--routed-scaling-factor",
        "--tp-comm-overlap": "--use-mc2",
        "--overlap-moe-expert-parallel-comm": "--moe-fb-overlap",
        "--grad-reduce-in-bf16": "--o2-gradient",
        "CUDA_LAUNCH_BLOCKING": "ASCEND_LAUNCH_BLOCKING",
    }
)
# a part of a layer -> the flag that recomputes it
PARTS = {
    "norm": "--recompute-norm",
    "activation": "--recompute-activation-function",
    "latent-up": "--recompute-mla-up-proj",
}
# Megatron's cp-comm-type -> context-parallel-algo
ALGORITHMS = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo"}
