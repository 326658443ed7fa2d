torchrun --nproc_per_node 8 pretrain_mamba.py --use-mcore-models --use-fused-rmsnorm \
    --spec mindspeed_llm.tasks.models.spec.mamba_spec layer_spec --num-layers 64 --hidden-size 2560 \
    --num-attention-heads 16 --mamba-num-groups 1 --mamba-state-dim 128 --mamba-expand 2 --mamba-head-dim 64 \
    --mamba-d-conv 4 --mamba-chunk-size 256 --seq-length 4096 --max-position-embeddings 4096 --padded-vocab-size 50288 \
    --position-embedding-type none --disable-bias-linear --normalization RMSNorm --micro-batch-size 1 \
    --global-batch-size 16 --bf16 --use-distributed-optimizer
