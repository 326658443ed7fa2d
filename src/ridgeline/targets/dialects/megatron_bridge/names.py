"""Which field of Megatron-Bridge's ConfigContainer carries which of Megatron's options: one table, read both ways."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ID = "megatron-bridge"

# Megatron option (without dashes) -> field, where the value is the same
FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "num-layers": "model.num_layers",
        "hidden-size": "model.hidden_size",
        "vocab-size": "model.vocab_size",
        "normalization": "model.normalization",
        "num-attention-heads": "model.num_attention_heads",
        "kv-channels": "model.kv_channels",
        "num-query-groups": "model.num_query_groups",
        "qk-layernorm": "model.qk_layernorm",
        "softmax-type": "model.softmax_type",
        "window-size": "model.window_size",
        "window-attn-skip-freq": "model.window_attn_skip_freq",
        "position-embedding-type": "model.position_embedding_type",
        "no-rope-freq": "model.no_rope_freq",
        "multi-latent-attention": "model.multi_latent_attention",
        "q-lora-rank": "model.q_lora_rank",
        "kv-lora-rank": "model.kv_lora_rank",
        "qk-head-dim": "model.qk_head_dim",
        "qk-pos-emb-head-dim": "model.qk_pos_emb_head_dim",
        "v-head-dim": "model.v_head_dim",
        "ffn-hidden-size": "model.ffn_hidden_size",
        "num-experts": "model.num_moe_experts",
        "moe-router-topk": "model.moe_router_topk",
        "moe-ffn-hidden-size": "model.moe_ffn_hidden_size",
        "moe-shared-expert-intermediate-size": "model.moe_shared_expert_intermediate_size",
        "moe-router-num-groups": "model.moe_router_num_groups",
        "moe-router-group-topk": "model.moe_router_group_topk",
        "moe-layer-freq": "model.moe_layer_freq",
        "moe-latent-size": "model.moe_latent_size",
        "moe-grouped-gemm": "model.moe_grouped_gemm",
        "moe-router-pre-softmax": "model.moe_router_pre_softmax",
        "add-qkv-bias": "model.add_qkv_bias",
        "mtp-num-layers": "model.mtp_num_layers",
        "hybrid-layer-pattern": "model.hybrid_layer_pattern",
        "hybrid-override-pattern": "model.hybrid_override_pattern",
        "mamba-num-heads": "model.mamba_num_heads",
        "mamba-head-dim": "model.mamba_head_dim",
        "mamba-state-dim": "model.mamba_state_dim",
        "mamba-num-groups": "model.mamba_num_groups",
        "mamba-chunk-size": "model.mamba_chunk_size",
        "moe-shared-expert-gate": "model.moe_shared_expert_gate",
        "attention-output-gate": "model.attention_output_gate",
        "linear-attention-freq": "model.linear_attention_freq",
        "linear-num-key-heads": "model.linear_num_key_heads",
        "linear-num-value-heads": "model.linear_num_value_heads",
        "linear-key-head-dim": "model.linear_key_head_dim",
        "linear-value-head-dim": "model.linear_value_head_dim",
        "linear-conv-kernel-dim": "model.linear_conv_kernel_dim",
        "experimental-attention-variant": "model.experimental_attention_variant",
        "seq-length": "model.seq_length",
        "tensor-model-parallel-size": "model.tensor_model_parallel_size",
        "pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
        "context-parallel-size": "model.context_parallel_size",
        "use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
        "expert-model-parallel-size": "model.expert_model_parallel_size",
        "expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
        "sequence-parallel": "model.sequence_parallel",
        "cp-comm-type": "model.cp_comm_type",
        "pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
        "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
        "decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
        "decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
        "account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
        "account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
        "recompute-granularity": "model.recompute_granularity",
        "recompute-method": "model.recompute_method",
        "recompute-num-layers": "model.recompute_num_layers",
        "recompute-modules": "model.recompute_modules",
        "cpu-offloading-num-layers": "model.cpu_offloading_num_layers",
        "attention-backend": "model.attention_backend",
        "transformer-impl": "model.transformer_impl",
        "cuda-graph-impl": "model.cuda_graph_impl",
        "cuda-graph-modules": "model.cuda_graph_modules",
        "cuda-graph-scope": "model.cuda_graph_scope",
        "te-rng-tracker": "model.use_te_rng_tracker",
        "moe-token-dispatcher-type": "model.moe_token_dispatcher_type",
        "moe-flex-dispatcher-backend": "model.moe_flex_dispatcher_backend",
        "overlap-moe-expert-parallel-comm": "comm_overlap.overlap_moe_expert_parallel_comm",
        "micro-batch-size": "train.micro_batch_size",
        "global-batch-size": "train.global_batch_size",
        "optimizer": "optimizer.optimizer",
        "sgd-momentum": "optimizer.sgd_momentum",
        "use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
        "exp-avg-dtype": "optimizer.exp_avg_dtype",
        "exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype",
        "main-params-dtype": "optimizer.main_params_dtype",
        "optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
        "optimizer-offload-fraction": "optimizer.optimizer_offload_fraction",
        "overlap-cpu-optimizer-d2h-h2d": "optimizer.overlap_cpu_optimizer_d2h_h2d",
        "use-distributed-optimizer": "ddp.use_distributed_optimizer",
        "num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
        "use-megatron-fsdp": "ddp.use_megatron_fsdp",
        "data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
        "overlap-grad-reduce": "comm_overlap.overlap_grad_reduce",
        "overlap-param-gather": "comm_overlap.overlap_param_gather",
        "tp-comm-overlap": "comm_overlap.tp_comm_overlap",
        "fp8-format": "mixed_precision.fp8",
        "fp8-recipe": "mixed_precision.fp8_recipe",
        "fp8-param-gather": "mixed_precision.fp8_param_gather",
        "fp4-format": "mixed_precision.fp4",
        "fp4-recipe": "mixed_precision.fp4_recipe",
        "fp4-param-gather": "mixed_precision.fp4_param_gather",
        "reuse-grad-buf-for-mxfp8-param-ag": "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",
        "ckpt-format": "checkpoint.ckpt_format",
        "rotary-base": "model.rotary_base",
        "norm-epsilon": "model.layernorm_epsilon",
        "use-rope-scaling": "model.rope_scaling",
        "rope-scaling-factor": "model.rope_scaling_factor",
        "rope-type": "model.rope_type",
        "rotary-scaling-factor": "model.rotary_scaling_factor",
        "rotary-percent": "model.rotary_percent",
        "mscale": "model.mscale",
        "mscale-all-dim": "model.mscale_all_dim",
        "yarn-original-max-position-embeddings": "model.yarn_original_max_position_embeddings",
        "yarn-beta-fast": "model.yarn_beta_fast",
        "yarn-beta-slow": "model.yarn_beta_slow",
        "moe-aux-loss-coeff": "model.moe_aux_loss_coeff",
        "moe-router-load-balancing-type": "model.moe_router_load_balancing_type",
        "moe-router-score-function": "model.moe_router_score_function",
        "moe-router-enable-expert-bias": "model.moe_router_enable_expert_bias",
        "moe-router-topk-scaling-factor": "model.moe_router_topk_scaling_factor",
        "moe-permute-fusion": "model.moe_permute_fusion",
        "moe-router-fusion": "model.moe_router_fusion",
        "cross-entropy-loss-fusion": "model.cross_entropy_loss_fusion",
        "cross-entropy-fusion-impl": "model.cross_entropy_fusion_impl",
        "init-model-with-meta-device": "model.init_model_with_meta_device",
    }
)
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
OPPOSITE: Mapping[str, str] = MappingProxyType(
    {
        "untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights",
        "disable-bias-linear": "model.add_bias_linear",
        "no-gradient-accumulation-fusion": "model.gradient_accumulation_fusion",
        "no-overlap-p2p-communication": "comm_overlap.overlap_p2p_comm",
        "no-check-for-nan-in-loss-and-grad": "ddp.check_for_nan_in_grad",
    }
)
# field -> others that have to say the same: settings are kept twice, and one of two that is on turns both on
TWINS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ddp.use_distributed_optimizer": ("optimizer.use_distributed_optimizer",),
        "ddp.check_for_nan_in_grad": ("rerun_state_machine.check_for_nan_in_loss",),
        "comm_overlap.overlap_grad_reduce": ("ddp.overlap_grad_reduce",),
        "comm_overlap.overlap_param_gather": ("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    }
)
# switches that the common recipe turns on: each has to be said either way
ALWAYS: Mapping[str, str] = MappingProxyType(
    {
        "ddp.use_distributed_optimizer": "plan.shard",
        "comm_overlap.overlap_grad_reduce": "plan.overlap.grad-reduce",
        "comm_overlap.overlap_param_gather": "plan.overlap.param-gather",
        "comm_overlap.tp_comm_overlap": "plan.overlap.tp",
        "model.sequence_parallel": "plan.sequence_parallel",
    }
)
DTYPES: Mapping[str, str] = MappingProxyType(
    {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
)
_FP8: Mapping[str, Any] = {"fp8-format": "hybrid", "fp8-param-gather": True}
# what the named mixed-precision recipes set
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bf16_mixed": {"bf16": True},
        "fp16_mixed": {"fp16": True},
        "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8-recipe": "delayed", **_FP8},
        "bf16_with_fp8_current_scaling_mixed": {"bf16": True, "fp8-recipe": "tensorwise", **_FP8},
        "bf16_with_fp8_subchannel_scaling_mixed": {"bf16": True, "fp8-recipe": "blockwise", "fp8-format": "hybrid"},
        "bf16_with_mxfp8_mixed": {"bf16": True, **_FP8, "fp8-recipe": "mxfp8", "fp8-format": "e4m3"},
        "bf16_with_nvfp4_mixed": {"bf16": True, "fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
        "fp16_with_fp8_delayed_scaling_mixed": {"fp16": True, "fp8-recipe": "delayed", **_FP8},
        "fp16_with_fp8_current_scaling_mixed": {"fp16": True, "fp8-recipe": "tensorwise", **_FP8},
        "fp16_with_fp8_subchannel_scaling_mixed": {"fp16": True, "fp8-recipe": "blockwise", "fp8-format": "hybrid"},
        "fp16_with_mxfp8_mixed": {"fp16": True, **_FP8, "fp8-recipe": "mxfp8", "fp8-format": "e4m3"},
    }
)
ACTIVATIONS: Mapping[str, str] = MappingProxyType({"squared-relu": "squared_relu", "quick-geglu": "quick_gelu"})
# what recipes/common.py @0eca073e sets before a recipe changes it
COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "train.global_batch_size": 32,
        "train.micro_batch_size": 2,
        "dataset.seq_length": 4096,
        "ddp.use_distributed_optimizer": True,
        "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": True,
        "ddp.grad_reduce_in_fp32": True,
        "ddp.data_parallel_sharding_strategy": "optim_grads_params",
        "mixed_precision": "bf16_mixed",
    }
)
# what adapters stand beside -> its name in a layer
LORA = {"qkv": "linear_qkv", "out": "linear_proj", "up": "linear_fc1", "gate": "linear_fc1", "down": "linear_fc2"}
