torchrun --nproc_per_node 8 pretrain_megatron_llama.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --intermediate-size 11008 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 16 \
    --patch-tokenizer-type LLamaTokenizer --fp16 --use-distributed-optimizer
