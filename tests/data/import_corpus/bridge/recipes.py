"""Two recipes of our own in Megatron-Bridge's words."""

import os

from megatron.bridge import AutoBridge
from megatron.bridge.diffusion.models.wan.wan_provider import WanModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer


def mine_8b_pretrain_16gpu_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = 8 * 1024
    cfg.dataset.seq_length = cfg.model.seq_length
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.context_parallel_size = int(os.environ.get("CP", 2))
    cfg.model.sequence_parallel = True
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "uniform"
    cfg.model.recompute_num_layers = 1
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    return cfg


def video_pretrain_config() -> ConfigContainer:
    cfg = ConfigContainer(
        model=WanModelProvider(num_layers=40, hidden_size=5120, num_attention_heads=40, seq_length=1024)
    )
    cfg.train.global_batch_size = 8
    cfg.train.micro_batch_size = 1
    return cfg
