torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer \
    data.train_batch_size=64 data.max_length=2048 \
    model.path=Qwen/Qwen2.5-7B engine=fsdp engine.ulysses_sequence_parallel_size=2
