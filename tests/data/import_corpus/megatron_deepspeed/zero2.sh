#!/bin/bash
ZERO_STAGE=2
cat <<EOT > ds_config.json
{ "train_micro_batch_size_per_gpu": 4, "zero_optimization": { "stage": $ZERO_STAGE }, "fp16": { "enabled": true } }
EOT
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 256 --vocab-size 50257 \
    --fp16 --deepspeed --deepspeed_config ds_config.json --zero-stage $ZERO_STAGE --no-pipeline-parallel \
    --checkpoint-activations --deepspeed-activation-checkpointing
