export EXECUTABLE=train.py
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml model_name=llama2-70b \
    per_device_batch_size=2 max_target_length=4096 ici_fsdp_parallelism=-1 ici_tensor_parallelism=4 remat_policy=full
