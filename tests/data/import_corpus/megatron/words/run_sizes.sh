#!/bin/bash
# called with words, as the text beside it shows
ENV=$1
MODEL_SIZE=$2
BATCH_SIZE=$3
TP=$4 # degree of tensor parallelism
if [ $MODEL_SIZE = 1B ]; then
    LAYERS=16; HIDDEN=2048
elif [ $MODEL_SIZE = 2B ]; then
    LAYERS=24; HIDDEN=2560
fi
torchrun --nproc_per_node 8 pretrain.py --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 16 \
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size $BATCH_SIZE --global-batch-size 32 \
    --tensor-model-parallel-size $TP --vocab-size 32000 --bf16
