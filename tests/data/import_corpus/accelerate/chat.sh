ZERO_STAGE=$2
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
deepspeed --num_gpus 8 main.py --model_name_or_path facebook/opt-1.3b --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 2 --max_seq_len 512 --gradient_checkpointing --zero_stage $ZERO_STAGE --deepspeed \
    --offload --lora_dim 64 --lora_module_name decoder.layers. --output_dir ./output
