"""Which keys of a Hugging Face config never change a model's shape, and which must be off because they would.

A key belongs to `IRRELEVANT` when no value of it adds, removes or resizes a parameter, nor changes which tokens a layer
sees. A key belongs to `OFF` when its usual value is harmless and any other is a feature that no reader here supports.
"""

from __future__ import annotations

# what a file says about itself, its numbers and its tokens
_BOOKKEEPING = """
    _name_or_path name_or_path architectures auto_map model_type transformers_version torch_dtype dtype _commit_hash
    quantization_config compression_config bos_token_id eos_token_id pad_token_id sep_token_id
    unk_token_id eod_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id tokenizer_class prefix task_specific_params
    finetuning_task id2label label2id num_labels problem_type language custom_pipelines unsloth_version unsloth_fixed
    _attn_implementation attn_implementation _attn_implementation_autoset _experts_implementation torchscript
    use_bfloat16 tf_legacy_loss return_dict return_dict_in_generate output_attentions output_hidden_states
    output_scores output_router_logits keys_to_ignore_at_inference is_decoder tie_encoder_decoder
    _flash_attn_2_enabled flash_attn use_cache use_mamba_kernels use_mem_eff_path use_fused_kernels torch_compile
    ignore_index ignored_index seq_length is_causal num_logits_to_keep gradient_checkpointing base_model_tp_plan
    bos_token eos_token pad_token tie_last_hidden_states use_return_dict cache_implementation model_max_length
"""
# how training started and what it added to the loss
_TRAINING = """
    initializer_range initializer_factor init_std init_device init_method rescale_prenorm_residual pretraining_tp
    attention_dropout attn_pdrop resid_pdrop embd_pdrop emb_pdrop hidden_dropout hidden_dropout_prob residual_dropout
    resid_dropout embed_dropout embedding_dropout dropout layerdrop classifier_dropout attention_probs_dropout_prob
    attn_dropout_prob projection_dropout ffn_dropout activation_dropout projector_dropout drop_path_rate
    classifier_dropout_prob
    router_aux_loss_coef aux_loss_alpha seq_aux router_jitter_noise moe_z_loss_coeff z_loss_coefficient
    router_z_loss_coef norm_topk_prob routed_scaling_factor scoring_func topk_method ep_size moe_router_dtype
    use_aux_loss aux_loss_weight residual_in_fp32 fp32_residual_connection num_experts_per_tok_train
"""
# scales, epsilons and rotations: they multiply, they do not reshape
_SCALES = """
    rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon layernorm_eps rope_theta
    rope_scaling rope_parameters rope_interleave rope_local_base_freq rotary_base rotary_dim rotary_pct rotary_emb_base
    partial_rotary_factor rope_pct rope_type rope_ratio original_max_position_embeddings embedding_multiplier
    logits_scaling residual_multiplier attention_multiplier logit_scale query_pre_attn_scalar softmax_scale
    attn_scale floor_scale attn_temperature_tuning swiglu_limit
    swiglu_alpha scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn slow_but_exact
    scale_embedding clip_qkv alibi_bias_max indexer_rope_interleave mrope_section use_mrope
    attention_softmax_in_fp32 masked_softmax_fusion
"""
# sampling defaults that old files carry
_GENERATION = """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length min_length max_new_tokens no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences remove_invalid_values repetition_penalty suppress_tokens
    temperature top_k top_p typical_p chunk_size_feed_forward
"""
# names and places of special tokens in a prompt with images, sound or video
_TOKENS = """
    image_token_id image_token_index video_token_id video_token_index audio_token_id audio_token_index
    vision_start_token_id
    vision_end_token_id image_start_token_id image_end_token_id video_start_token_id video_end_token_id _pad_token_id
    vision_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id boa_token_id
    eoa_token_id eoa_token_index image_seq_length video_seq_length tokens_per_second media_placeholder_token_id
"""

IRRELEVANT = frozenset(" ".join((_BOOKKEEPING, _TRAINING, _SCALES, _GENERATION, _TOKENS)).split())

OFF = frozenset({"is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size", "pruned_heads"})
