python3 -m maxtext.trainers.post_train.sft.train_sft model_name=gemma2-9b per_device_batch_size=1 max_target_length=1024 \
    ici_fsdp_parallelism=4 ici_fsdp_transpose_parallelism=2 base_num_decoder_layers=10 lora.enable_lora=True \
    lora.lora_rank=16 remat_policy=full
