#!/bin/bash
# A Slurm cluster of two nodes, n1 and n2, in namespaces of its own: slurm_cluster.sh FOLDER COMMAND...
# Run it through `unshare --net --mount --uts --pid --fork --mount-proc`: the network has loopback alone (with a second
# address, or getaddrinfo finds no family configured), /etc/hosts knows the nodes, and everything ends with COMMAND.
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"/{run,state,log}
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
hostname n1
printf '127.0.0.1 localhost n1 n2\n' > "$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 400 "$folder/munge.key"
cat > "$folder/slurm.conf" <<CONF
ClusterName=two
SlurmctldHost=n1(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmctldPort=16817
SlurmctldPidFile=$folder/run/ctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmdSpoolDir=$folder/spool-%n
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/log/ctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-2] NodeAddr=127.0.0.1 NodeHostname=n1 Port=[17001-17002] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
export SLURM_CONF=$folder/slurm.conf
munged --key-file="$folder/munge.key" --socket="$folder/run/munge.socket" --pid-file="$folder/run/munged.pid" \
    --log-file="$folder/log/munged.log" --seed-file="$folder/run/seed" --force
slurmctld -i
slurmd -N n1
slurmd -N n2
for _ in $(seq 100); do
    [ "$(timeout 5 sinfo -h -o '%T %D' 2>/dev/null || true)" = "idle 2" ] && break
    sleep 0.2
done
exec "$@"
