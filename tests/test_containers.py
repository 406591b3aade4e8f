"""What launch/ has for containers and for Flux: files that hold together, checked against what reads them.

``.ci/container`` runs the image's steps in a new Debian, and two pods as the MPI Operator connects them.
"""

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nplm_mpi import train
from tests.helpers.commands import DATA
from tests.helpers.mpi import ROOT, Finished, launch
from tests.test_launch import recorder

LAUNCH = ROOT / "launch"
JOB = yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())
REPLICAS = JOB["spec"]["mpiReplicaSpecs"]


def pod(role: str) -> dict[str, Any]:
    return REPLICAS[role]["template"]["spec"]


def strict(schema: Any) -> Any:
    """A schema in which an object has only properties that are described, as kubectl refuses others."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def complaints(job: Any) -> list[str]:
    """What the operator's schema (kubeflow/mpi-operator, v2beta1, without its descriptions) finds wrong."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(gzip.decompress((DATA / "mpijob_v2beta1.schema.json.gz").read_bytes()))
    schema["properties"]["metadata"] = {"type": "object"}
    validator = jsonschema.Draft202012Validator(strict(schema))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(job)]


def test_the_job_is_what_the_mpi_operator_reads() -> None:
    assert complaints(JOB) == []
    assert (JOB["apiVersion"], JOB["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")


@pytest.mark.parametrize(
    "old, new",
    [
        ("slotsPerWorker: 4", "slotsPerWorker: four"),
        ("slotsPerWorker:", "slotsPerWorkers:"),
        ("mpiImplementation: MPICH", "mpiImplementation: MVAPICH"),
        ("emptyDir: {medium: Memory, sizeLimit: 1Gi}", "emptydir: {medium: Memory}"),
        ("tcpSocket: {port: 2222}", "tcpSocket: {}"),
        ("restartPolicy: OnFailure", "restartpolicy: OnFailure"),
    ],
)
def test_a_slip_in_the_job_would_be_found(old: str, new: str) -> None:
    text = (LAUNCH / "mpijob.yaml").read_text()
    assert old in text
    assert complaints(yaml.safe_load(text.replace(old, new)))


def test_the_job_starts_a_rank_for_each_slot_and_each_slot_has_a_core() -> None:
    slots = JOB["spec"]["slotsPerWorker"]
    (launcher,), (worker,) = pod("Launcher")["containers"], pod("Worker")["containers"]
    assert launcher["command"][:3] == ["mpirun", "-n", str(slots * REPLICAS["Worker"]["replicas"])]
    assert launcher["command"][3:] == ["python", "-m", "nplm_mpi.train"]
    assert worker["resources"]["limits"] == worker["resources"]["requests"]
    assert worker["resources"]["limits"]["cpu"] == str(slots)


def test_the_job_goes_on_after_a_failure_with_options_that_exist() -> None:
    (launcher,) = pod("Launcher")["containers"]
    found = train.make_parser().parse_args(launcher["args"])
    assert found.resume == "auto" and found.out.startswith("/runs/")
    assert JOB["spec"]["runPolicy"]["backoffLimit"] > 0
    assert pod("Launcher")["terminationGracePeriodSeconds"] >= 60


def test_pods_see_the_runs_have_shared_memory_and_meet_where_sshd_listens() -> None:
    for role in REPLICAS:
        (container,) = pod(role)["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod(role)["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert "persistentVolumeClaim" in volumes[mounts["/runs"]]
    home = JOB["spec"]["sshAuthMountPath"].removesuffix("/.ssh")
    setup = (LAUNCH / "container.sh").read_text()
    (worker,) = pod("Worker")["containers"]
    assert worker["command"] == ["/usr/sbin/sshd", "-De", "-f", f"{home}/.sshd_config"]
    port = worker["readinessProbe"]["tcpSocket"]["port"]
    assert setup.count(f"Port {port}\n") == 2  # sshd's and ssh's
    assert f"HostKey {home}/.ssh/id_rsa\n" in setup
    assert f"useradd -m -u {pod('Worker')['securityContext']['runAsUser']} {home.rpartition('/')[2]}" in setup


def test_both_kinds_of_images_take_the_same_steps_and_the_same_arguments() -> None:
    docker, apptainer = ((LAUNCH / name).read_text() for name in ("Dockerfile", "apptainer.def"))
    assert re.findall(r"(?m)^RUN (.*)", docker) == ["MPI=$MPI bash launch/container.sh"]
    assert "MPI={{ MPI }} bash launch/container.sh" in apptainer
    assert re.search(r"(?m)^FROM (\S+)", docker)[1] == re.search(r"(?m)^From: (\S+)", apptainer)[1]  # type: ignore[index]
    assert "ARG MPI=mpich\n" in docker and "\n    MPI=mpich\n" in apptainer
    sections = re.findall(r"(?m)^%(\w+)", apptainer)
    assert set(sections) <= {"help", "arguments", "files", "post", "environment", "runscript", "test"}
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize("script", ["launch/container.sh", ".ci/container"])
def test_scripts_of_containers_are_valid_bash(script: str) -> None:
    assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0


def test_an_mpi_that_is_not_known_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    recorder(tmp_path, "apt-get")
    env = {"MPI": "mvapich", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    finished = launch(["bash", str(LAUNCH / "container.sh")], env=env, cwd=tmp_path)
    assert finished.returncode == 2 and "MPI=mvapich" in finished.stderr
    assert not (tmp_path / "apt-get.called").exists()


# Says what it was asked, keeps the run alive until it is signalled, and knows how much time is left.
FLUX = r"""
echo "$*" >>"$FOLDER/asked"
[ "$1" != --parent ] || shift
case "$1 $2" in
    "resource list") echo 40 ;;
    "getattr jobid") echo f17 ;;
    "submit -n") echo f2 ;;
    "job attach") while [ ! -e "$FOLDER/ended" ]; do sleep 0.05; done; exit "$(cat "$FOLDER/ended")" ;;
    "job kill") echo 0 >"$FOLDER/ended" ;;
    "job timeleft") echo "$LEFT"; [ -z "$ENDS" ] || echo "$ENDS" >"$FOLDER/ended" ;;
    "job info") echo '{"jobspec": 1}' ;;
    "job submit") cat >"$FOLDER/submitted"; exit "${REFUSED:-0}" ;;
esac
"""


def flux_job(tmp_path: Path, left: str, ends: str = "", **more: str) -> tuple[Finished, str]:
    """``flux.sh`` under that flux, and what it asked."""
    (tmp_path / "flux").write_text(f"#!/bin/bash\n{FLUX}")
    (tmp_path / "flux").chmod(0o755)
    env = dict(FOLDER=str(tmp_path), LEFT=left, ENDS=ends, OUT="runs/four", LOOK="1", PYTHON="python", **more)
    env["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    finished = launch(
        ["bash", str(LAUNCH / "flux.sh"), "--preset", "mlp9"], env=env, cwd=tmp_path, timeout=30
    )
    return finished, (tmp_path / "asked").read_text()


def test_a_flux_job_saves_before_its_time_limit_and_is_submitted_again_as_it_was(tmp_path: Path) -> None:
    finished, asked = flux_job(tmp_path, left="60")
    assert finished.returncode == 0, finished.stderr
    assert "submit -n 40 python -m nplm_mpi.train --out runs/four --resume auto --preset mlp9\n" in asked
    assert "job kill -s USR1 f2\n" in asked and "--parent job info f17 jobspec\n" in asked
    assert json.loads((tmp_path / "submitted").read_text()) == {"jobspec": 1}


@pytest.mark.parametrize("code", ["0", "2"])
def test_a_flux_job_that_ends_by_itself_is_not_submitted_again(tmp_path: Path, code: str) -> None:
    finished, asked = flux_job(tmp_path, left="4294967295", ends=code, RANKS="8")
    assert finished.returncode == int(code)
    assert "submit -n 8 " in asked and "kill" not in asked
    assert not (tmp_path / "submitted").exists()


def test_a_flux_job_that_cannot_be_submitted_again_fails_and_says_so(tmp_path: Path) -> None:
    finished, _ = flux_job(tmp_path, left="60", REFUSED="1")
    assert finished.returncode == 1 and "could not be submitted again" in finished.stderr
