#!/usr/bin/env bash
# A Ray cluster for one job of Slurm: sbatch slurm.sh game.py --epochs 1000
#SBATCH --job-name=parallel-agents
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
set -euo pipefail

port=6379
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

# Everybody on the network can reach Ray's ports: nodes of this job alone know the token.
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE RAY_AUTH_TOKEN

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --num-cpus=0 --include-dashboard=false --block &
sleep 15
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" \
    ray start --address="$address:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 30

workers=$(((SLURM_NNODES - 1) * SLURM_CPUS_PER_TASK))
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    parallel-agents train "$@" --backend ray --set "parallel.address=$address:$port" --set "parallel.num_workers=$workers"
