export PP=4
export EXP=${EXP:-tests/primus/tuned.yaml}
./primus-cli direct -- train pretrain --config "$EXP" --global_batch_size 64 --micro_batch_size "1" --recompute_layer_ids None
