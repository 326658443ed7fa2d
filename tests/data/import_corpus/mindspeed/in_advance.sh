torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --use-mcore-models --use-flash-attn --use-fused-rmsnorm \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 8192 \
    --max-position-embeddings 8192 --padded-vocab-size 32000 --untie-embeddings-and-output-weights \
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 --micro-batch-size 1 \
    --global-batch-size 32 --bf16 --use-distributed-optimizer --recompute-in-advance --recompute-method block \
    --recompute-num-layers 2 --enable-recompute-layers-per-pp-rank --reset-attention-mask --fix-sub-seq-length 2048
