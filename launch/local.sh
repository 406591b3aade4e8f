#!/usr/bin/env bash
# Trains on this machine, or on a few machines that ssh reaches; continues the run where --out holds one.
#
#   launch/local.sh RANKS OUT [OPTIONS of nplm_mpi.train]
#   launch/local.sh 2 runs/first
#   HOSTS=launch/hosts.example launch/local.sh 40 runs/mlp9 --preset mlp9 --corpus brown
#
# kill -USR1 its process: the run saves and stops; the same command continues it.
#
# HOSTS   a file of machines, see launch/hosts.example; all of them see this folder and this Python under the same paths
# PYTHON  the interpreter that has nplm_mpi (python)
# MPIRUN  the launcher of the MPI that this Python uses (mpirun)
set -euo pipefail

if [ $# -lt 2 ]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
ranks=$1 out=$2
shift 2
python=${PYTHON:-python} mpirun=${MPIRUN:-mpirun}
# A rank computes with one thread; without this each would start a pool of them all the same.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}

# machine:ranks,machine:ranks,... is what both MPIs take on the command line
hosts=
if [ -n "${HOSTS:-}" ]; then
    hosts=$(sed 's/#.*//; s/[[:space:]]//g; /^$/d' "$HOSTS" | paste -sd, -)
fi

flags=()
if "$mpirun" --version 2>&1 | grep -qi 'open mpi\|openrte\|prte'; then
    [ "$(id -u)" != 0 ] || flags+=(--allow-run-as-root)
    [ -z "$hosts" ] || flags+=(-H "$hosts")
    if [ -z "$hosts" ] && [ "$ranks" -gt "$(nproc)" ]; then
        # more ranks than cores: those that wait must let others compute
        flags+=(--oversubscribe --mca mpi_yield_when_idle 1)
    fi
    flags+=(--bind-to none -x OMP_NUM_THREADS -x OPENBLAS_NUM_THREADS)
else
    [ -z "$hosts" ] || flags+=(-hosts "$hosts")
fi

# exec: signals sent to this script then reach the launcher, which passes USR1 on to the ranks. Before bash 4.4 an empty array counts
# as unset, hence the plus sign.
exec "$mpirun" ${flags[@]+"${flags[@]}"} -n "$ranks" "$python" -m nplm_mpi.train --out "$out" --resume auto "$@"
