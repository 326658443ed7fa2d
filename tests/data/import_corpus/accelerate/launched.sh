# a scheduler in front, a launcher that is told what it starts, and a second run that is not read
uv run schedule.py --num_nodes 2 --gpus 8 --image mine -- accelerate launch \
    --mixed_precision bf16 --num_processes 8 --use_deepspeed --zero_stage 3 \
    tune.py --model_name_or_path Qwen/Qwen3-8B --max_seq_length 4096 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --gradient_checkpointing \
    --evaluation_strategy no
accelerate launch tune.py --model_name_or_path Qwen/Qwen3-4B --max_seq_length 1024 \
    --per_device_train_batch_size 1 --use_peft True
