export MODEL=${MODEL:-"mine"}
export TRAINING_PARAMS_PATH=./tables/${MODEL}.yaml
declare -A SIZES=(
    [Small]="2  4   64"
    [Large]="4  8   128"
)
choose() {
    local -n sizes=$1
    local held=(${sizes[$2]})
    export TP=${TP:-${held[0]}} PP=${PP:-${held[1]}} GBS=${GBS:-${held[2]}}
}
choose SIZES ${MODEL}
if [[ -f ${TRAINING_PARAMS_PATH} ]]; then
    envsubst < ${TRAINING_PARAMS_PATH} > ${TRAINING_PARAMS_PATH}.tmp
fi
PARAMS=$(yq '.MODEL_ARGS | to_entries | .[] | [.key + " " + .value] | join("")' ${TRAINING_PARAMS_PATH}.tmp | tr '\n' ' ')
PARAMS="${PARAMS} $@"
if [[ ! "${PARAMS}" =~ "--recompute-granularity" ]]; then
    PARAMS="${PARAMS} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
fi
export COMMAND="python pretrain_gpt.py ${PARAMS}"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
srun --mpi=pmix bash -c \\\${COMMAND} 2>&1 | tee log
EOF
