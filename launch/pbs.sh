#!/usr/bin/env bash
# Trains under PBS (PBS Pro, OpenPBS, Torque) for as many time limits as it takes:
#
#   qsub -l select=2:ncpus=20,walltime=24:00:00 -v OUT=runs/mlp9,OPTIONS="--preset mlp9 --corpus brown",SECONDS_TO_RUN=86000 launch/pbs.sh
#   qsub -l nodes=2:ppn=20,walltime=24:00:00 -v ... launch/pbs.sh          (Torque)
#
# PBS gives no warning before the time limit, so this script keeps time itself: after SECONDS_TO_RUN the run saves and stops, and
# the same job is submitted again with the same resources, queue, account, project, group and name, until the training is finished.
#
# How many ranks: one for each allocated core, or as many as mpiprocs says.
#
# OUT             the run's folder, on a file system that all nodes see. The tasks of an array job are runs of their own: %a in it is
#                 the task's number, and without %a each takes the folder OUT/TASK
# OPTIONS         options of nplm_mpi.train; where a value holds a comma, which qsub -v cannot carry, use --config FILE
# SECONDS_TO_RUN  a few minutes less than the walltime (86000)
# PYTHON, MPIRUN  the interpreter that has nplm_mpi (python) and the launcher of its MPI (mpirun)
# SCRIPT          this file, as the folder of the first qsub sees it (launch/pbs.sh)
#PBS -N nplm
#PBS -l walltime=24:00:00
#PBS -j oe
set -uo pipefail
cd "${PBS_O_WORKDIR:-.}" || exit 1

# module load ... and source .../bin/activate belong here

: "${OUT:?give the run\'s folder: qsub -v OUT=...}"
task=${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-}}
if [ -n "$task" ]; then
    case $OUT in *%a*) ;; *) OUT=$OUT/%a ;; esac
    OUT=${OUT//%a/$task}
fi
export OUT OPTIONS="${OPTIONS:-}" SECONDS_TO_RUN="${SECONDS_TO_RUN:-86000}" PYTHON="${PYTHON:-python}" MPIRUN="${MPIRUN:-mpirun}"
export SCRIPT="${SCRIPT:-launch/pbs.sh}" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# What PBS knows of this job: lines "name = value" of qstat -f, of which long ones go on after a tab.
job=$(qstat -f "${PBS_JOBID:-}" 2>/dev/null | awk '
    /^\t/ { line = line substr($0, 2); next }
    { if (line != "") print line; line = $0; sub(/^ +/, "", line) }
    END { print line }')
known() { sed -n "s/^$1 = //p" <<<"$job" | head -n 1; }

# PBS lists each node once per rank, but with select=...:ncpus=20 and no mpiprocs once per chunk, whose cores exec_host tells, as in
# n1/0*20+n2/0*20. Equal neighbours become node:ranks, which both MPIs take.
mapfile -t lines <"$PBS_NODEFILE"
chunks=$(known exec_host) each=() cores=0
for chunk in ${chunks//+/ }; do
    case $chunk in *\**) each+=("${chunk##*\*}") ;; *) each+=(1) ;; esac
    cores=$((cores + ${each[${#each[@]} - 1]}))
done
case $(known Resource_List.select) in *mpiprocs=*) each=() ;; esac
if [ ${#each[@]} != ${#lines[@]} ]; then each=(); fi
hosts=$(for i in "${!lines[@]}"; do echo "${lines[i]} ${each[i]:-1}"; done | awk '
    $1 != host { if (host != "") printf "%s:%d,", host, ranks; host = $1; ranks = 0 }
    { ranks += $2 }
    END { printf "%s:%d", host, ranks }')
ranks=$(tr , '\n' <<<"$hosts" | awk -F: '{ ranks += $NF } END { print ranks }')
if [ "$ranks" -lt $cores ]; then
    echo "note: $ranks ranks on $cores allocated cores; ask for as many mpiprocs as ncpus, or for none" >&2
fi
flags=(-hosts "$hosts")
if "$MPIRUN" --version 2>&1 | grep -qi 'open mpi\|openrte\|prte'; then flags=(-H "$hosts"); fi

# shellcheck disable=SC2086  # OPTIONS is several words
"$MPIRUN" "${flags[@]}" -n "$ranks" "$PYTHON" -m nplm_mpi.train --out "$OUT" --resume auto $OPTIONS &
run=$!

( trap 'kill $!' TERM; sleep "$SECONDS_TO_RUN" & wait $! && kill -USR1 $$ ) &
alarm=$!

stopped=
trap 'stopped=1; kill -USR1 $run' USR1
trap 'kill -TERM $run 2>/dev/null' TERM
# A signal interrupts wait, not the run.
while kill -0 $run 2>/dev/null; do wait $run; done
wait $run
code=$?
kill $alarm 2>/dev/null

# The options of qsub that submit this job once more, one word a line.
submission() {
    local name value select nodes queue account project group
    select=$(known Resource_List.select) nodes=$(known Resource_List.nodes)
    if [ -z "$select$nodes" ]; then     # no qstat here: at least the nodes that it has
        nodes=$(tr , '\n' <<<"$hosts" | awk -F: '{ printf "%s1:ppn=%d", plus, $NF; plus = "+" }')
        printf -- '-l\nnodes=%s\n' "$nodes"
        [ -z "${PBS_WALLTIME:-}" ] || printf -- '-l\nwalltime=%s\n' "$PBS_WALLTIME"
    fi
    while IFS== read -r name value; do
        name=${name#Resource_List.} name=${name% } value=${value# }
        case $name in
            nodect | neednodes | mpiprocs) continue ;;                  # which PBS counts itself
            nodes) [ -z "$select" ] || continue ;;
            ncpus) [ -z "$select$nodes" ] || continue ;;
            mem | vmem) [ -z "$select" ] || continue ;;                 # sums over select's chunks
        esac
        case :$select in *":$name="*) continue ;; esac
        printf -- '-l\n%s=%s\n' "$name" "$value"
    done < <(grep '^Resource_List\.' <<<"$job")
    queue=${PBS_O_QUEUE:-$(known queue)} account=$(known Account_Name) project=$(known project) group=$(known group_list)
    queue=${queue:-${PBS_QUEUE:-}} account=${account:-${PBS_ACCOUNT:-}}
    [ -z "$queue" ] || printf -- '-q\n%s\n' "$queue"
    [ -z "$account" ] || printf -- '-A\n%s\n' "$account"
    [ -z "$project" ] || [ "$project" = _pbs_project_default ] || printf -- '-P\n%s\n' "$project"
    [ -z "$group" ] || printf -- '-W\ngroup_list=%s\n' "$group"
    printf -- '-N\n%s\n' "${PBS_JOBNAME:-nplm}"
}

if [ -n "$stopped" ] && [ $code = 0 ]; then
    mapfile -t words < <(submission)
    variables=
    for name in OUT OPTIONS SECONDS_TO_RUN PYTHON MPIRUN SCRIPT; do
        # A value with a comma is taken from the environment, where qsub is told its name alone.
        case ${!name} in *,*) variables=$variables,$name ;; *) variables=$variables,$name=${!name} ;; esac
    done
    if ! qsub "${words[@]}" -v "${variables#,}" "$SCRIPT"; then
        echo "the job could not be submitted again; qsub it by hand with the same OUT to go on" >&2
        exit 1
    fi
fi
exit $code
