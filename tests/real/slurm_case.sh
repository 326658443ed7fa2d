#!/bin/bash
# What test_slurm.py does inside the cluster: a batch of two nodes, then a step that is asked to stop.
# slurm_case.sh SCENARIO FOLDER
set -uo pipefail
ridgeline run "$1" --steps 4 --every 2 -o "$2/batch" --sbatch "$2/run.sbatch"
sbatch --wait -N2 --ntasks-per-node=1 --output="$2/batch.out" "$2/run.sbatch"
echo "batch ended with $?" >> "$2/told"
srun -N2 -n2 ridgeline run "$1" --steps 100000 -o "$2/stopped" > "$2/stopped.out" 2>&1 &
step=$!
for _ in $(seq 600); do
    [ -s "$2/stopped/metrics.jsonl" ] && break
    sleep 0.2
done
scancel --signal=TERM "$(squeue -h -o %i)"
wait $step
echo "stopped with $?" >> "$2/told"
