#!/bin/bash
NPUS_PER_NODE=8
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes 1 posttrain_gpt.py --use-mcore-models --use-flash-attn \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec --qk-layernorm --kv-channels 128 \
    --num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32 --group-query-attention \
    --num-query-groups 8 --untie-embeddings-and-output-weights --padded-vocab-size 151936 --disable-bias-linear \
    --position-embedding-type rope --normalization RMSNorm --swiglu --seq-length 4096 --max-position-embeddings 40960 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 \
    --bf16 --use-distributed-optimizer --stage sft --finetune --lora-r 16 --lora-alpha 32 \
    --lora-target-modules linear_qkv linear_proj
