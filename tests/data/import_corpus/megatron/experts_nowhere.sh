torchrun --nproc_per_node 8 pretrain_mine.py --num-layers 4 --hybrid-override-pattern M-*- --hidden-size 512 --seq-length 1024 \
    --num-attention-heads 8 --num-experts 8 --moe-router-topk 2 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000
