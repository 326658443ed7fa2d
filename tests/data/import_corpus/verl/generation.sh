python3 -m verl.trainer.main_generation trainer.nnodes=1 trainer.n_gpus_per_node=8 model.path=Qwen/Qwen2.5-7B \
    actor_rollout_ref.rollout.n=4
