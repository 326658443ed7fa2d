python3 -m benchmarks.benchmark_runner xpk --device_type=v6e-256 --num_slices=2 --model_name="mixtral_8x22b_dropped"
