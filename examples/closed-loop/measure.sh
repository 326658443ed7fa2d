#!/bin/bash
# Start the exported server, load it at three rates, three times each, and end it. The first run warms the server up. In
# the middle, where drift of the machine counts least, stands one at a rate of its own that steps are fitted to (anchor.json).
set -euo pipefail
cd "$(dirname "$0")"
export MODEL=$PWD/model OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR

bash deploy/launch.sh --load-format dummy > server.log 2>&1 &
server=$!
trap 'kill $server' EXIT
until curl -sf http://127.0.0.1:8000/health > /dev/null; do sleep 1; kill -0 $server; done

bench() { bash deploy/bench.sh "$@" --disable-tqdm > bench.log 2>&1; }
bench --request-rate 1 --num-prompts 10 --result-filename warm.json
for repeat in 1 2 3; do
    bench --request-rate 0.4 --num-prompts 20 --seed $repeat --result-filename low-$repeat.json
    bench --request-rate 0.8 --num-prompts 36 --seed $repeat --result-filename mid-$repeat.json
    if [ $repeat = 2 ]; then bench --request-rate 1 --num-prompts 45 --seed 99 --result-filename anchor.json; fi
    bench --request-rate 1.2 --num-prompts 48 --seed $repeat --result-filename high-$repeat.json
done
