#!/usr/bin/env bash
# Trains under Flux for as many time limits as it takes:
#
#   OUT=runs/mlp9 flux batch -N 2 -n 40 -t 24h launch/flux.sh --preset mlp9 --corpus brown
#
# Shortly before the time limit the run saves and stops, and the same job is submitted once more, with the resources, the queue and
# the environment of the first; it continues there, until the training is finished.
#
# How many ranks: one for each core of the job, or RANKS.
#
# OUT     the run's folder, on a file system that all nodes see
# RANKS   how many ranks, for jobs whose slots have several cores (flux batch -c)
# PYTHON  the interpreter that has nplm_mpi (python). Flux itself starts MPICH's ranks; for Open MPI's it needs its plugin flux-pmix
# BEFORE  seconds before the time limit at which the run is told to save (90)
# LOOK    seconds between two looks at the time that is left (15)
#FLUX: --job-name=nplm
#FLUX: --output=nplm-{{id}}.log
set -uo pipefail

# module load ... and source .../bin/activate belong here

: "${OUT:?give the run\'s folder: OUT=runs/name flux batch ...}"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
ranks=${RANKS:-$(flux resource list -s all -no '{ncores}')}

run=$(flux submit -n "$ranks" "${PYTHON:-python}" -m nplm_mpi.train --out "$OUT" --resume auto "$@") || exit 1
flux job attach --read-only "$run" &
attached=$!

stopped=
trap 'flux job kill -s TERM "$run"' TERM
# A signal interrupts wait, not the run.
while kill -0 $attached 2>/dev/null; do
    if [ -z "$stopped" ] && left=$(flux --parent job timeleft "$(flux getattr jobid)") && [ "$left" -le "${BEFORE:-90}" ]; then
        stopped=1
        flux job kill -s USR1 "$run"
    fi
    for _ in $(seq "${LOOK:-15}"); do
        kill -0 $attached 2>/dev/null || break
        sleep 1
    done
done
wait $attached
code=$?

if [ -n "$stopped" ] && [ $code = 0 ]; then
    echo "time limit: the job is submitted again"
    # what Flux keeps of a job holds this script, its arguments, its resources and its environment
    if ! flux --parent job info "$(flux getattr jobid)" jobspec | flux --parent job submit; then
        echo "the job could not be submitted again: submit it with OUT=$OUT to go on" >&2
        exit 1
    fi
fi
exit $code
