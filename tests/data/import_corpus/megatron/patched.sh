torchrun --nproc_per_node 8 pretrain_qwen.py --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 \
    --group-query-attention --num-query-groups 4 --swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias \
    --position-embedding-type rope --untie-embeddings-and-output-weights --max-position-embeddings 131072 \
    --extra-vocab-size 421 --patch-tokenizer-type Qwen2Tokenizer --seq-length 2048 --micro-batch-size 1 \
    --global-batch-size 16 --bf16 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer
