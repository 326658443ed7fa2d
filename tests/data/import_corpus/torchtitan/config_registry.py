"""A preset of our own in the words of torchtitan's current version."""

from torchtitan.components.lora import LoRAConverter
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.qwen3 import model_registry
from torchtitan.trainer import Trainer


def qwen3_8b_mine() -> Trainer.Config:
    tokens = 4096
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * tokens, max_context_length=tokens),
        parallelism=ParallelismConfig(pipeline_parallel_degree=2, num_pp_microbatches=8, data_parallel_shard_degree=4),
        activation_checkpoint=FullAC.Config(),
    )


def qwen3_8b_adapters() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B", converters=[LoRAConverter.Config(rank=8, target_modules=["wq", "wo"])]),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4096, max_context_length=4096),
        parallelism=ParallelismConfig(data_parallel_shard_degree=8),
        activation_checkpoint=FullAC.Config(),
    )
