torchrun --nproc_per_node=8 train.py --lora_enable True --lora_r 16 --lora_target_modules q_proj,k_proj,v_proj \
    --model_name_or_path lmsys/vicuna-7b-v1.5 --model_max_length 2048 --bf16 True \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --fsdp "full_shard auto_wrap"
