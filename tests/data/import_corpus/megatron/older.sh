#!/bin/bash
# words of 2021, and gaps that the author leaves
options=" --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers 40 --hidden-size 5120 \
    --num-attention-heads 40 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 \
    --vocab-file <PATH TO gpt-vocab.json> --merge-file <PATH TO gpt-merges.txt> --tensorboard-dir <A DIRECTORY> \
    --fp16 --activations-checkpoint-method uniform "
srun -l --container-image "nvcr.io/nvidia/pytorch:20.12-py3" sh -c "python -u pretrain_gpt.py ${options}"
