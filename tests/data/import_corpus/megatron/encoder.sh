torchrun pretrain_bert.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 \
    --max-position-embeddings 512 --micro-batch-size 4 --global-batch-size 32 --tokenizer-type BertWordPieceLowerCase
