"""Which words of MaxText mean what: models, recompute policies, number formats, optimizers."""

from __future__ import annotations

ID = "maxtext"

# catalog id -> model_name, where MaxText's own model file describes the same model
MODELS_NAMED = {
    "llama2-7b": "llama2-7b",
    "llama2-13b": "llama2-13b",
    "llama2-70b": "llama2-70b",
    "llama3-8b": "llama3-8b",
    "llama3-70b": "llama3-70b",
    "llama3.1-8b": "llama3.1-8b",
    "llama3.1-70b": "llama3.1-70b",
    "llama3.1-405b": "llama3.1-405b",
    "llama3.3-70b": "llama3.3-70b",
    "mistral-7b": "mistral-7b",
    "mixtral-8x7b": "mixtral-8x7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "deepseek-v2-lite": "deepseek2-16b",
    "deepseek-v2": "deepseek2-236b",
    "deepseek-v3": "deepseek3-671b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gemma2-9b": "gemma2-9b",
    "gemma2-27b": "gemma2-27b",
    "gemma3-4b": "gemma3-4b",
    "gemma3-12b": "gemma3-12b",
    "gemma3-27b": "gemma3-27b",
    "llama4-scout": "llama4-17b-16e",
    "llama4-maverick": "llama4-17b-128e",
    "kimi-k2": "kimi-k2-1t",
    "gpt3-175b": "gpt3-175b",
    "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-14b": "qwen2.5-14b",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-1.7b": "qwen3-1.7b",
    "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-coder-480b-a35b": "qwen3-480b-a35b",
    "qwen3-next-80b-a3b": "qwen3-next-80b-a3b",
}
# other names of the same models, which are read
ALSO_NAMED = {
    "deepseek3-671b-2dfsdp": "deepseek-v3",
    "deepseek3-671b-batchsplit": "deepseek-v3",
    "llama3-405b": "llama3.1-405b",
    "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b",
    "olmo3-7b": "olmo3-7b",
    "olmo3-7b-pt": "olmo3-7b",
    "olmo3-32b": "olmo3-32b",
    "qwen3-vl-2b": "qwen3-vl-2b",
    "qwen3-vl-4b": "qwen3-vl-4b",
    "llama3.1-8b-Instruct": "llama3.1-8b",
    "llama3.1-70b-Instruct": "llama3.1-70b",
    "qwen3-1.7b-base": "qwen3-1.7b",
    "qwen3-4b-base": "qwen3-4b",
    "qwen3-8b-base": "qwen3-8b",
    "qwen3-14b-base": "qwen3-14b",
    "qwen3-30b-a3b-base": "qwen3-30b-a3b",
    "qwen3-4b-thinking-2507": "qwen3-4b",
    "qwen2.5-1.5b": "qwen2.5-1.5b",
    "qwen3-vl-30b-a3b": "qwen3-vl-30b-a3b",
    "qwen3.5-35b-a3b": "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b": "qwen3.5-397b-a17b",
    "gemma2-2b": "gemma2-2b",
    "gemma4-26b": "gemma4-26b-a4b",
    "gemma4-31b": "gemma4-31b",
    "deepseek3.2-671b": "deepseek-v3.2",
    "deepseek4-284b": "deepseek-v4-flash",
}
# model_name -> the vocabulary of its file, where it is rounded
VOCABULARIES = {
    "gemma2-9b": 256128,
    "gemma2-27b": 256128,
    "gemma3-4b": 262144,
    "gemma3-12b": 262144,
    "gemma3-27b": 262144,
    "gpt3-175b": 50304,
}
FIXED_OPTIMIZER = {"gpt3-175b": "adam_pax"}  # a model's file stands above ours
# the start of the names of models whose blocks Muon is let loose on
MUON = ("deepseek", "kimi", "qwen3", "gpt-oss", "gemma3", "llama2", "llama3")
OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}

# remat_policy -> what it recomputes: it keeps named products, the rest is done again; less first
POLICIES = {
    "minimal_with_context": ("selective", ("activation", "norm")),
    "minimal": ("selective", ("activation", "attention", "norm")),
    "save_dot_with_context_except_mlp": ("selective", ("mlp", "norm")),
    "save_dot_except_mlp": ("selective", ("attention", "mlp", "norm")),
    "full": ("full", ()),
}
LIKE = {
    "minimal_flash": "minimal_with_context",
    "minimal_offloaded": "minimal",
    "minimal_with_quantization": "minimal",
    "minimal_with_context_and_quantization": "minimal_with_context",
    "save_qkv_proj": "save_dot_except_mlp",
    "save_out_proj": "full",
    "save_dot_except_mlpwi": "save_dot_except_mlp",
    "qkv_proj_offloaded": "save_dot_except_mlp",
    "none": "full",  # every layer stands in a checkpoint that, without a policy, keeps nothing
}
# for remat_policy = custom: tensors of one layer, by what keeping them spares
PROJECTIONS = ("query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "out_proj")
WIDE = ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo")
# projections that spare a second pass through the layer's inputs when all of a row are kept
PROJECTED = (("query_proj", "key_proj", "value_proj"), ("query_proj", "kv_proj"), ("qkv_proj",))
WIDENED = ("mlpwi", "mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1")  # what `mlpwo` alone does not spare
CONTEXT = ("context", "attention_out")
INPUT = "decoder_layer_input"
OTHERS = ("query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv", "moe_x_sorted", "moe_routing_maps")

LONG = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
# (format, what shares a scale) -> quantization; Transformer Engine's on GPUs, qwix's on TPUs
ON_GPU = {
    ("fp8-e4m3", "tensor"): "te_fp8_currentscaling",
    ("mxfp8", "block"): "te_mxfp8",
    ("nvfp4", "block"): "te_nvfp4",
    ("int8", "tensor"): "int8",
}
ON_TPU = {("fp8-e4m3", "tensor"): "fp8_full", ("int8", "tensor"): "int8"}
BY_QWIX = ("fp8_full", "int8")
QUANTIZED = {
    "": None,
    "te_no_quant": None,
    **dict.fromkeys(("fp8", "fp8_full", "fp8_e4m3", "fp8_gpu", "nanoo_fp8", "fp8_nanoo"), ("fp8-e4m3", "tensor")),
    **dict.fromkeys(("te_fp8_delayedscaling", "te_fp8_currentscaling"), ("fp8-e4m3", "tensor")),
    "te_mxfp8": ("mxfp8", "block"),
    **dict.fromkeys(("te_nvfp4", "te_nvfp4_no_rht"), ("nvfp4", "block")),
    "int8": ("int8", "tensor"),
}
ALSO_AXES = {"fsdp": "fsdp_transpose", "context": "context_usp_ulysses"}  # axis -> one that splits the same
AXES = ("data", "fsdp", "tensor", "tensor_sequence", "context", "pipeline", "expert")
TWO_DEVICES = ("tpu-v7x",)  # chips whose two cores JAX counts as devices of their own


def devices_of(chip: str) -> int:
    """How many devices JAX counts for a chip.

    >>> devices_of("tpu-v7x"), devices_of("tpu-v5p")
    (2, 1)
    """
    return 2 if chip in TWO_DEVICES else 1


def parts_of(policy: str, experts: bool) -> tuple[str, ...]:
    """The parts a selective policy recomputes; in models with experts those of the wide layers are meant too.

    >>> parts_of("save_dot_except_mlp", True)
    ('attention', 'mlp', 'moe', 'norm')
    """
    parts = POLICIES[policy][1]
    return tuple(sorted({*parts, "moe"})) if experts and "mlp" in parts else parts
