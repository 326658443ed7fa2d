python3 -m maxtext.checkpoint_conversion.to_maxtext src/maxtext/configs/base.yml model_name=gemma2-2b per_device_batch_size=1
