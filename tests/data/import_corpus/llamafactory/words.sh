llamafactory-cli train --stage sft --do_train --finetuning_type lora --lora_rank 8 --lora_target all \
    --model_name_or_path Qwen/Qwen3-4B --template qwen3 --bf16 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 8
