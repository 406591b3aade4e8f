"""The machine that this process runs on: its name, its processor, and how many cores it may use."""

import math
import os
import platform
import socket
from pathlib import Path

QUOTAS = Path("/sys/fs/cgroup")


def hostname() -> str:
    """The machine's name, without its domain."""
    return socket.gethostname().split(".")[0]


def processor() -> str:
    """What the machine calls its processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.machine()


def quota() -> float:
    """How many cores' time a container may use, inf without a limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((QUOTAS / name).read_text(encoding="ascii") for name in names).split()
            if int(words[0]) > 0:
                return int(words[0]) / int(words[1])
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            continue
    return math.inf


def cores(allowed: set[int]) -> int:
    """How many of some cores a container's share of time is worth, at least one."""
    return max(1, min(len(allowed), math.ceil(min(quota(), 1e9))))


def own_cores() -> set[int]:
    """The cores that this process may run on."""
    return os.sched_getaffinity(0)
