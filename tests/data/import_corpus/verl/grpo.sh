set -x
MODEL_PATH=${MODEL_PATH:-"${RAY_DATA_HOME:-$HOME}/models/multiturn-sft-qwen-2.5-7b-instruct/global_step_372"}
sp_size=2
max_response_length=$((1024 * 3))
python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=$max_response_length \
    actor_rollout_ref.model.path="${MODEL_PATH}" actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=$sp_size actor_rollout_ref.rollout.name=vllm \
    trainer.nnodes=2 trainer.n_gpus_per_node=8 "$@"
