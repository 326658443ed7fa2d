"""Which keys of a family its reader passes over, and why: no value of them moves a prediction.

`hf/keys.toml` holds those of every family. A test changes every other key that a reader knows and fails where
nothing moves, and holds these lists against what readers pass over, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "how training started, what it dropped and what it added to the loss": """
            apply_spec_augment classif_dropout decoder_layerdrop dropout_rate embedding_initializer_range
            encoder_layerdrop initializer_cutoff_factor input_jitter_noise load_balance_coeff mask_feature_length
            mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob mlp_dropout
            param_init_fn qa_dropout save_step seq_classif_dropout sparse_pred_ignore_index sparse_prediction
            block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init time_step_init_scheme
            layer_scale_init_value time_step_scale mamba_dt_init_floor mamba_dt_max mamba_dt_min time_step_floor
            time_step_max time_step_min init_cutoff_factor init_fn altup_coef_clip
        """,
        "a factor, an offset or a limit: it multiplies or cuts, and reshapes nothing": """
            attention_value_scale dim_model_base layernorm_full_attention_alpha layernorm_full_attention_beta
            layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta
            mamba_dt_limit moe_apply_router_weight_on_input moe_norm_min moe_routed_scaling_factor
            moe_router_logit_softcapping mup_enabled norm_before_gate projection_layer_norm_eps projector_ln_eps
            route_norm route_scale router_scaling_factor scale_decoder_outputs scale_depth scale_emb score_func
            attention_in_multiplier attention_out_multiplier key_multiplier lm_head_multiplier mlp_multipliers
            ssm_in_multiplier ssm_multipliers ssm_out_multiplier mamba_norm_before_gate mixer_rms_eps block_norm_eps
            time_step_limit expert_selection_fn shared_expert_combination_strategy use_routing_bias eps
            full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor
            mlp_alpha_factor mlp_beta_factor postnorm gate_soft_cap hc_eps hc_sinkhorn_iters mla_scale_kv_lora
            mla_scale_q_lora moe_renormalize moe_router_activation_func rescale_every scale_logits use_expert_bias
            altup_active_idx altup_correct_scale
        """,
        "how far a rotation or a table of positions reaches, and where it starts": """
            global_rope_theta initial_context_length layer_rope_theta local_rope_theta offset_alibi
            relative_attention_max_distance rotary init_pos_emb_time pos_emb_time pos_emb_type compress_rope_theta
            qk_rope_head_dim rope_full_precision use_long_context use_mem_rope
        """,
        "which implementation software takes, and in which format it computes": """
            attn_impl bias_dropout_fusion conv_chunksize deterministic_flash_attn enable_attention_fp32_softmax
            enable_lm_head_fp32 enable_moe_fp32_combine for_llm_compressor inference_runner mamba_ssm_cache_dtype
            mamba_ssm_dtype moe_shared_expert_overlap pre_allocate_kv_cache reference_compile repad_logits_with_grad
            scale_attention_softmax_in_fp32 skip_bias_add skip_bias_add_qkv use_scan verbose
            use_weighted_layer_sum median_filter_width use_associative_scan use_falcon_mambapy use_mambapy
            activation_sparsity_pattern autocast_kernel_dtype chunkwise_kernel expert_dtype flash_attention
            inference_state_dtype max_inference_chunksize mode norm_reduction_force_float32 precision
            return_last_states sequence_kernel step_kernel weight_mode
        """,
        "of a tokenizer, a prompt or the file itself": """
            cls_token_id force_bos_token_to_be_generated init_config lang_ids mask_token mask_token_id
            tokenizer_name use_unified_vision_chunk video_placeholder output_past vision_soft_tokens_per_image
            assistant_token_id audio_end_token_id audio_start_token_id im_end_token_id im_start_token_id
            position_id_per_seconds seconds_per_chunk system_token_id tts_bos_token_id tts_eos_token_id
            tts_pad_token_id user_token_id num_image_tokens embedding_fraction max_num_images size vision_aspect_ratio
        """,
        "an activation or a way of pooling of as many elements": """
            classifier_activation classifier_pooling clf_pooling mamba_hidden_act merge_type mm_projector_type
            projector_hidden_act summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels
            summary_type summary_use_proj classifier_proj_size apply_residual_connection_post_layernorm
            vision_feature_select_strategy video_attn_type
        """,
        "says again what other keys of the file say, or what the family always is": """
            dense_act_fn in_chans is_gated_act learned_pos_emb mm_hidden_size n_ctx norm_type normalize_before
            normalize_embedding output_projection projection_dim qk_head_dim spatial_patch_size
            static_position_embeddings text_hidden_size time_step_rank add_bias_logits add_final_layer_norm
            extra_pos_embeddings interpolate_factor shared_moe_mode sliding_window_size use_qk_norm
            prefix_dense_sliding_window_pattern index_share_for_mtp_iteration decoder_vocab_size
            mtp_hybrid_override_pattern mtp_layers_block_type block_dim block_use_swiglu conv_dim conv_dim_out
            mamba_use_mlp use_pos_enc use_base_siglip use_image_newline_parameter attention_hidden_size
            attention_layer_norm_with_affine attention_method block_group_size hybrid_layer_ids kda_layers kv_channels
            mamba_headdim mla_use_nope mlp_ratio num_query_groups use_grouped_topk zero_expert_type
        """,
    }
)
WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {key: reason for reason, keys in _REASONS.items() for key in keys.split()}
)
"""Keys by name, each with the reason why it moves nothing."""

READ_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "activation_function": "StarCoder 2 and DiT say their activation by another key",
        "attention_types": "GPT-Neo's list is spelled out from the file itself, against attention_layers",
        "attention_head_dim": "Zamba 2's is twice its width over its heads",
        "attn_layer_indices": "Falcon H1 has attention in every layer",
        "audio_config": "Gemma 4's sound encoder is refused where a file has one",
        "embedding_dim": "xLSTM's is read where hidden_size is absent",
        "expand": "Mamba's inner width is heads times their size, which it must equal",
        "first_k_dense_replace": "Solar Open has experts on every layer",
        "head": "the catalog's word for what architectures says",
        "head_dim": "latent attention has head sizes of its own",
        "hidden_act": "Gemma says its activation by hidden_activation, Mamba 2 has one",
        "hidden_activation": "Gemma 1 says its activation by hidden_act",
        "hybrid_override_pattern": "Nemotron-H's letters are read from the file itself",
        "index_topk_pattern": "GLM-5's letters are read from the file itself",
        "intermediate_size": "models with experts on every layer, and Mamba 2, have no dense width",
        "layer_types": "MiniMax M2's layers are all alike",
        "layers_block_type": "Nemotron-H's letters speak for it",
        "max_source_positions": "audio encoders compute their positions, and their files say how sound is cut",
        "mamba_d_head": "Bamba's is read where it is a number",
        "mamba_dt_rank": "Jamba's is read where it is a number",
        "mamba_expand": "Nemotron-H's inner width is heads times their size",
        "max_window_layers": "Qwen 3 with experts slides on all layers or none",
        "mlp_layer_types": "DeepSeek-V4's say how experts are picked, by a table or by scores; both weigh the same",
        "moe_intermediate_size": "Gemma 4 without experts has none",
        "n_inner": "BLOOM's mlp is four times its width",
        "n_positions": "T5's positions are relative",
        "num_blocks": "xLSTM's is read where num_hidden_layers is absent",
        "num_experts": "Gemma 4 without experts has none",
        "num_hash_layers": "DeepSeek-V4's first layers pick experts by a table, which no product is saved by",
        "num_hidden_layers": "models of two stacks count each by a key of its own",
        "num_key_value_heads": "latent attention and GPT-BigCode have as many as their kind has",
        "num_heads": "LFM 2 says it again by num_attention_heads",
        "position_embedding_type": "BERT's relatives are refused unless it is absolute",
        "share_encoder_decoder_embeddings": "Marian is refused unless both stacks share rows",
        "sliding_window": "families whose windows are switched off by another key",
        "sliding_window_pattern": "EXAONE's number or letters are read from the file itself",
        "task_type_vocab_size": "ERNIE has rows for tasks where use_task_id says so",
        "top_k_experts": "Gemma 4 without experts has none",
        "use_task_id": "BERT has no rows for tasks; ERNIE reads it",
        "vision_feature_layer": "layers that a projector reads are counted from the file itself",
        "vocab_size_per_layer_input": "Gemma 4's per-layer embeddings are refused where a file has some",
    }
)
"""Keys that one reader passes over because another key of its family speaks for them, with what does."""
