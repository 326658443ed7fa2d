accelerate launch -m lm_eval --model hf --model_args pretrained=Qwen/Qwen3-4B --tasks arc_easy --batch_size 16
