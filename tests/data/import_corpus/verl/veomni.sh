# the engine by its name alone, and words that another script passes on
PARAMS=(
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B
    actor_rollout_ref.actor.veomni.expert_parallel_size=8
    actor_rollout_ref.actor.veomni.ulysses_parallel_size=2
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
    data.max_prompt_length=1024
    data.max_response_length=3072
    trainer.nnodes=2
)
exec bash passed_on.sh "${PARAMS[@]}"
