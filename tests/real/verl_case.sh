#!/bin/bash
# Pieces of this machine and steps of verl in turn, in a network namespace of loopback alone: verl_case.sh FOLDER TURNS STEPS
# Run it through `unshare --net --pid --fork --mount-proc`; VERL names the Python with verl, Ray and vLLM.
set -uo pipefail
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
here=$(dirname "$0")
for turn in $(seq "$2"); do
    "$VERL" "$here/verl_pieces.py" "$1" > "$1/pieces-$turn.json" 2> "$1/pieces-$turn.err" || { tail -n 30 "$1/pieces-$turn.err" >&2; exit 1; }
    "$VERL" "$here/verl_grpo.py" "$1" "$3" > "$1/steps-$turn.out" 2>&1 || { tail -n 30 "$1/verl.out" >&2; exit 1; }
    mv "$1/metrics.jsonl" "$1/metrics-$turn.jsonl"
    cut -d ' ' -f 1 /proc/loadavg >> "$1/load"
done
