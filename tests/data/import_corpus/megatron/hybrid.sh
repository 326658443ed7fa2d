torchrun --nproc_per_node 8 pretrain_mamba.py --num-layers 24 --hybrid-attention-ratio 0.0833 --hybrid-mlp-ratio 0.5 \
    --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \
    --position-embedding-type none --disable-bias-linear --squared-relu --normalization RMSNorm \
    --micro-batch-size 2 --global-batch-size 64 --bf16 --use-distributed-optimizer
