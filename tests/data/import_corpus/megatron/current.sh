#!/bin/bash
# arrays, a condition and a default: a dense model of 8 billion parameters in fp8
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
TP=${TP_SIZE:-2}
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256
)
PARALLEL_ARGS=(--tensor-model-parallel-size $TP --context-parallel-size 2 --use-distributed-optimizer)
if [ $TP -gt 1 ]; then PARALLEL_ARGS+=(--sequence-parallel); fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" \
    --micro-batch-size 1 --global-batch-size $((16 * NNODES)) --bf16 --fp8-format hybrid --recompute-activations
