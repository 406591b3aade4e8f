#!/usr/bin/env bash
# Trains under PBS (PBS Pro, OpenPBS, Torque) for as many time limits as it takes:
#
#   qsub -l nodes=2:ppn=20,walltime=24:00:00 -v OUT=runs/mlp9,OPTIONS="--preset mlp9 --corpus brown",SECONDS_TO_RUN=86000 launch/pbs.sh
#
# PBS gives no warning before the time limit, so this script keeps time itself: after SECONDS_TO_RUN the run saves and stops, and
# the same job is submitted again, until the training is finished.
#
# OUT             the run's folder, on a file system that all nodes see
# OPTIONS         options of nplm_mpi.train; where a value holds a comma, which qsub -v cannot carry, use --config FILE
# SECONDS_TO_RUN  a few minutes less than the walltime (86000)
# PYTHON, MPIRUN  the interpreter that has nplm_mpi (python) and the launcher of its MPI (mpirun)
#PBS -N nplm
#PBS -l nodes=1:ppn=4
#PBS -l walltime=24:00:00
#PBS -j oe
set -uo pipefail
cd "${PBS_O_WORKDIR:-.}" || exit 1

# module load ... and source .../bin/activate belong here

: "${OUT:?give the run\'s folder: qsub -v OUT=...}"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# PBS lists each node once per rank; equal neighbours become node:ranks, which both MPIs take.
hosts=$(uniq -c "$PBS_NODEFILE" | awk '{printf "%s%s:%d", separator, $2, $1; separator = ","}')
ranks=$(wc -l <"$PBS_NODEFILE")
flags=(-hosts "$hosts")
if "${MPIRUN:-mpirun}" --version 2>&1 | grep -qi 'open mpi\|openrte\|prte'; then flags=(-H "$hosts"); fi

resume=()
[ ! -e "$OUT/config.yaml" ] || resume=(--resume)
# shellcheck disable=SC2086  # OPTIONS is several words
"${MPIRUN:-mpirun}" "${flags[@]}" -n "$ranks" "${PYTHON:-python}" -m nplm_mpi.train --out "$OUT" "${resume[@]}" ${OPTIONS:-} &
run=$!

sleep "${SECONDS_TO_RUN:-86000}" &
alarm=$!

stopped=
trap 'stopped=1; kill -USR1 $run' USR1
trap 'kill -TERM $run 2>/dev/null' TERM
# A signal interrupts wait, not the run.
while kill -0 $run 2>/dev/null; do
    wait -n $run $alarm
    if [ -z "$stopped" ] && ! kill -0 $alarm 2>/dev/null; then
        stopped=1
        kill -USR1 $run
    fi
done
wait $run
code=$?
kill $alarm 2>/dev/null

if [ -n "$stopped" ] && [ $code = 0 ]; then
    qsub -v OUT="$OUT",OPTIONS="${OPTIONS:-}",SECONDS_TO_RUN="${SECONDS_TO_RUN:-86000}",PYTHON="${PYTHON:-python}",MPIRUN="${MPIRUN:-mpirun}" \
        launch/pbs.sh
fi
exit $code
