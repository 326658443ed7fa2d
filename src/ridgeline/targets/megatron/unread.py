"""Which of Megatron's options change what a step costs although a scenario has no place for them."""

from __future__ import annotations

from fnmatch import fnmatchcase

# options that change the step; the rest of what is not read decides nothing about it
CHANGES = (
    "fine-grained-activation-offloading",
    "offload-modules",
    "delay-offload-until-cuda-graph",
    "swap-attention",
    "reuse-fp32-param",
    "moe-alltoall-overlap-comm",
    "moe-hierarchical-alltoallv",
    "moe-shared-expert-overlap",
    "moe-zero-memory",
    "moe-layer-recompute",
    "spec",
    "experimental-attention-variant",
    "hetero*",
    "heterogeneous*",
    "shared-expert-gate",
    "interleave-sliding-window",
    "post-norm",
    "input-embeds-norm",
    "output-embeds-norm",
    "attention-output-gate",
    "hierarchical-context-parallel-sizes",
    "hybrid-context-parallel",
    "moe-expert-capacity-factor",
    "moe-pad-expert-input-to-capacity",
    "distribute-saved-activations",
    "defer-embedding-wgrad-compute",
    "delay-wgrad-compute",
    "cpu-offloading*",
    "freeze-*",
    "lora*",
    "peft*",
    "first-last-layers-bf16",
    "num-layers-at-*-in-bf16",
    "hyper-connection*",
    "use-hyper-connections",
    "csa-*",
    "dsa-*",
    "mla-*-indexer*",
    "enable-mhc",
    "step-batch-size-schedule",
    "enable-zbh1-pipeline",
    "enable-zero-bubble*",
    "stage",
    "outer-dp-sharding-strategy",
    "enable-full-sharding-in-hsdp",
    "encoder-*",
    "vision-*",
    "ds-sequence-parallel-fpdt*",
    "curriculum-learning*",
    "random-ltd",
    "use-tutel",
    "mos",
    "create-moe-param-group",
    "mlp-type",
    "topk",
    "memory-centric*",
    "partition-activations",
    "checkpoint-in-cpu",
    "rl-*",
    "zero-stage",
    "zero-reduce-scatter",
    "zero-contigious-gradients",
    "no-pipeline-parallel",
    "use-torch-fsdp2",
    "num-distributed-optimizer-instances",
    "recompute-modules",
    "model.hybrid*",
    "model.mamba_s*",
    "model.mamba_h*",
    "model.mamba_n*",
    "model.experimental*",
    "model.fine_grained*",
    "model.offload_modules",
    "model.attention_output_gate",
    "model.moe_shared_expert_overlap",
    "model.freeze*",
    "*.delay_wgrad_compute",
)
HARMLESS_VALUES = frozenset({"False", "None", "0", "0.0", "''", "", "[]", "none", "'no_shard'"})


def changes_step(option: str, value: str = "True") -> bool:
    """Whether an option that was not read changes what a step costs.

    >>> changes_step("swap-attention"), changes_step("lr"), changes_step("model.freeze_vision_model", "False")
    (True, False, False)
    """
    return value not in HARMLESS_VALUES and any(fnmatchcase(option, pattern) for pattern in CHANGES)
