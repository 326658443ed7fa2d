HERE="$(cd "$(dirname "$0")" && pwd)"
python3 -m verl.trainer.main_ppo --config-path="$HERE/config" --config-name='mine_grpo' \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=2 trainer.n_gpus_per_node=8
