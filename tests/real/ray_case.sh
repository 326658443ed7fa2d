#!/bin/bash
# Two Ray nodes in a network namespace of their own (Ray listens on all interfaces): ray_case.sh SCENARIO FOLDER
# Run it through `unshare --net --pid --fork --mount-proc`; RAY names the folder of Ray's programs, RIDGELINE the verb.
set -uo pipefail
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
export RAY_DISABLE_IMPORT_WARNING=1 RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_V2_ENABLED=1 GLOO_SOCKET_IFNAME=lo
# shared memory in megabytes, one CPU a node: a rank on each
common=(--num-cpus=1 --object-store-memory=80000000 --disable-usage-stats --min-worker-port=0 --max-worker-port=0)
"$RAY/ray" start --head --node-ip-address=127.0.0.1 --port=6399 --include-dashboard=false "${common[@]}" > "$2/head.out" 2>&1
"$RAY/ray" start --address=127.0.0.1:6399 "${common[@]}" > "$2/second.out" 2>&1
export RAY_ADDRESS=127.0.0.1:6399
"$RAY/python" -m ridgeline run "$1" --launcher ray --steps 4 --every 2 -o "$2/run" > "$2/run.out" 2>&1
echo "ended with $?" > "$2/told"
