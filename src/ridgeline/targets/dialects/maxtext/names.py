"""Which words of MaxText mean what: models, recompute policies, number formats, optimizers."""

from __future__ import annotations

from ridgeline.targets.tables import sizes, values, word_lists, word_pairs, words

ID = "maxtext"

# catalog id -> model_name, where MaxText's own model file describes the same model
MODELS_NAMED = words("maxtext", "models_named")
# other names of the same models, which are read
ALSO_NAMED = words("maxtext", "also_named")
# model_name -> the vocabulary of its file, where it is rounded
VOCABULARIES = sizes("maxtext", "vocabularies")
FIXED_OPTIMIZER = {"gpt3-175b": "adam_pax"}  # a model's file stands above ours
# the start of the names of models whose blocks Muon is let loose on
MUON = ("deepseek", "kimi", "qwen3", "gpt-oss", "gemma3", "llama2", "llama3")
OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}

# remat_policy -> what it recomputes: it keeps named products, the rest is done again; less first
POLICIES = values("maxtext", "policies")
LIKE = words("maxtext", "like")
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
ON_GPU, ON_TPU = word_pairs(ID, "on_gpu"), word_pairs(ID, "on_tpu")
BY_QWIX = ("fp8_full", "int8")
# quantization -> (format, what shares a scale)
QUANTIZED = {word: tuple(means) or None for word, means in word_lists(ID, "quantized").items()}
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
    parts = tuple(POLICIES[policy][1])
    return tuple(sorted({*parts, "moe"})) if experts and "mlp" in parts else parts
