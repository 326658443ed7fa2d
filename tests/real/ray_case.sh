#!/bin/bash
# What test_ray.py does: two Ray nodes on loopback, a run on both, and one that loses a node: ray_case.sh SCENARIO FOLDER
# Run it through `unshare --net --pid --fork --mount-proc`; RAY names the folder of Ray's programs.
set -uo pipefail
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
export RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_V2_ENABLED=1 GLOO_SOCKET_IFNAME=lo
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d " \n")"  # newer Rays ask every node for one
# one CPU a node: a rank on each
common=(--num-cpus=1 --object-store-memory=80000000 --disable-usage-stats)
"$RAY/ray" start --head --node-ip-address=127.0.0.1 --port=6399 --include-dashboard=false --temp-dir="$(mktemp -d /tmp/ray-XXXX)" "${common[@]}" \
    > "$2/head.out" 2>&1
"$RAY/ray" start --address=127.0.0.1:6399 --block "${common[@]}" > "$2/second.out" 2>&1 &
second=$!
export RAY_ADDRESS=127.0.0.1:6399
chips=0
for _ in $(seq 30); do
    chips=$("$RAY/python" -c 'import ray; ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
print(int(ray.cluster_resources().get("CPU", 0)))' 2>/dev/null | tail -n 1)
    [ "$chips" = 2 ] && break
    sleep 1
done
[ "$chips" = 2 ] || { echo "no two nodes of Ray" | tee "$2/told" "$2/run.out" "$2/lost.out" >&2; exit 1; }
"$RAY/python" -m ridgeline run "$1" --launcher ray --steps 4 --every 2 -o "$2/run" > "$2/run.out" 2>&1
echo $? > "$2/told"
"$RAY/python" -m ridgeline run "$1" --launcher ray --steps 400 --every 20 -o "$2/lost" --elastic > "$2/lost.out" 2>&1 &
run=$!
until [ -s "$2/lost/metrics.jsonl" ] || ! kill -0 $run 2>/dev/null; do sleep 0.2; done
# all that descends from the second node's `ray start`: its raylet and its workers
doomed=($second)
for ((i = 0; i < ${#doomed[@]}; i++)); do doomed+=($(pgrep -P "${doomed[$i]}")); done
kill -9 "${doomed[@]}"
wait $run
echo $? >> "$2/told"
