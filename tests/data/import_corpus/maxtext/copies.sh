python3 -m maxtext.trainers.post_train.sft.train_sft configs/sft.yml model_name=qwen3-next-80b-a3b \
  per_device_batch_size=2 max_target_length=8192 ici_data_parallelism=4 ici_fsdp_parallelism=-1 \
  remat_policy=custom decoder_layer_input=offload mlpwo=offload key_proj=device value_proj=device
