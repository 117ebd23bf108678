#!/usr/bin/env bash
# A campaign on Slurm: sbatch --ntasks 64 slurm.sh PLAN.toml FOLDER
#
# FOLDER is on a file system that all nodes share.  All nodes have to be of one kind (--constraint), since results of
# machines whose bits differ are refused.  A job that reaches its time goes on where it stopped: submit it again.
#SBATCH --job-name=campaign
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@60
set -euo pipefail
plan=$1 folder=$2
mkdir -p "$folder"
file=$folder/scheduler-$SLURM_JOB_ID.json
export NPROC=1                                       # bits depend on the number of threads
export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=30s   # a node that goes dark says nothing

dask scheduler --scheduler-file "$file" --port 0 --no-dashboard &
until [ -s "$file" ]; do sleep 1; done
srun --kill-on-bad-exit=0 dask worker --scheduler-file "$file" --nthreads 1 --no-dashboard &
address=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$file")
# In the place of this script, so that Slurm's signal reaches it.
exec fault-injection campaign "$plan" --out "$folder/campaign" --cache "$folder/cache" --scheduler "$address"
