"""Two emulated hosts on one Linux machine, with a chosen delay between them. Needs root.

Each host is a network namespace with one device.  Both devices are TUN devices whose
other ends this program holds: it passes every packet on, ``delay`` seconds after it
came.  Files, users and processes stay common::

    with SlowHosts(500e-6) as hosts:
        subprocess.run(hosts.mpirun(["python", "-m", "nplm_mpi.train"]), env=hosts.environment())
"""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

TUN = "/dev/net/tun"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NETWORK = "10.99.0"
# Large packets: a bulk message costs the delay line few of them.
MTU = 65_000


class SlowHosts:
    """A context in which the two hosts exist.

    Parameters
    ----------
    delay : float
        Seconds from one host to the other; about 30 microseconds come on top.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        Without the rights or the devices that this takes.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.names = [f"nplm{os.getpid()}h{i}" for i in (1, 2)]
        self.line: subprocess.Popen | None = None

    def __enter__(self) -> "SlowHosts":
        try:
            for name in self.names:
                ip("netns", "add", name)
            self.line = subprocess.Popen(
                [sys.executable, __file__, str(self.delay), *self.names], stdout=subprocess.PIPE, text=True
            )
            assert self.line.stdout is not None
            if self.line.stdout.readline().strip() != "ready":
                raise OSError("the delay line did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self.line is not None:
            self.line.kill()
            self.line.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def mpirun(self, command: list[str]) -> list[str]:
        """``command`` with one rank on each host, by the MPICH beside this Python."""
        enter = f'exec ip netns exec {self.names[0][:-1]}$((PMI_RANK + 1)) "$@"'
        return [
            str(Path(sys.executable).with_name("mpiexec")), "-n", "2", "sh", "-c", enter, "host", *command
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Variables without which MPICH would notice that both hosts are one machine."""
        by_tcp = {
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "eth0",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "eth0",
        }
        return {**os.environ, "MPIR_CVAR_NOLOCAL": "1", **by_tcp}


def ip(*arguments: str) -> None:
    """Call ``ip``."""
    subprocess.run(["ip", *arguments], check=True)


def make_device(namespace: str, number: int) -> int:
    """A TUN device in a namespace, up and with an address; the descriptor of its other end."""
    end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    device = f"{namespace[-12:]}t"
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    ip("link", "set", device, "netns", namespace)
    inside = ("-n", namespace)
    ip(*inside, "link", "set", device, "name", "eth0", "mtu", str(MTU))
    ip(*inside, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
    for name in ("lo", "eth0"):
        ip(*inside, "link", "set", name, "up")
    return end


def run_delay_line(delay: float, namespaces: list[str]) -> None:
    """Pass packets between two namespaces until killed."""
    ends = [make_device(name, number) for number, name in enumerate(namespaces, 1)]
    # Wake up when asked to, and before ranks that spin.
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    # All packets wait equally long, so the first to come is the first to leave.
    waiting: deque[tuple[float, int, bytes]] = deque()
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, (), (), pause)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(end, MTU + 64)
                    waiting.append((time.monotonic() + delay, other[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            with contextlib.suppress(OSError):  # a full queue loses packets, as networks do
                os.write(end, packet)


if __name__ == "__main__":
    run_delay_line(float(sys.argv[1]), sys.argv[2:])
