"""Which words of Megatron mean what: modules, number formats, sharding strategies, positions."""

from __future__ import annotations

ID = "megatron"

# a part of a layer -> the module that is recomputed
MODULES = {
    "attention": "core_attn",
    "norm": "layernorm",
    "activation": "moe_act",
    "mlp": "mlp",
    "moe": "moe",
    "latent-up": "mla_up_proj",
}
# of optimizer states
STATES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8-e4m3": "fp8"}
# of Megatron-FSDP
STRATEGIES = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
# (format, what shares a scale) -> Transformer Engine's recipe
RECIPES = {("fp8-e4m3", "tensor"): "tensorwise", ("fp8-e4m3", "block"): "blockwise", ("mxfp8", "block"): "mxfp8"}
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none", "alibi": "alibi"}
