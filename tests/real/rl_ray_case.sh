#!/bin/bash
# What test_rl_ray.py does: two Ray nodes on loopback, and the Python program beside this file: rl_ray_case.sh FOLDER CASE
# Run it through `unshare --net --pid --fork --mount-proc`; RAY names the folder of Ray's programs.
set -uo pipefail
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
export RAY_USAGE_STATS_ENABLED=0 GLOO_SOCKET_IFNAME=lo RAY_ADDRESS=127.0.0.1:6399
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d " \n")"  # newer Rays ask every node for one
common=(--num-cpus=1 --object-store-memory=80000000 --disable-usage-stats)
"$RAY/ray" start --head --node-ip-address=127.0.0.1 --port=6399 --include-dashboard=false --temp-dir="$(mktemp -d /tmp/ray-XXXX)" "${common[@]}" \
    > "$1/head.out" 2>&1
"$RAY/ray" start --address=127.0.0.1:6399 --block "${common[@]}" > "$1/second.out" 2>&1 &
for _ in $(seq 30); do
    chips=$("$RAY/python" -c 'import ray; ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
print(int(ray.cluster_resources().get("CPU", 0)))' 2>/dev/null | tail -n 1)
    [ "$chips" = 2 ] && break
    sleep 1
done
[ "$chips" = 2 ] || { echo "no two nodes of Ray" >&2; exit 1; }
"$RAY/python" "$(dirname "$0")/rl_ray_case.py" "$2" "$1" > "$1/case.out" 2>&1
