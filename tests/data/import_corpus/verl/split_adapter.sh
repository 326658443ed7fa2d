python3 main_ppo_split.py data.max_prompt_length=512 data.max_response_length=512 trainer.n_gpus_per_node=8 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct actor_rollout_ref.model.lora_adapter_path=/my/adapter \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
