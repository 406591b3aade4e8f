"""Updates of many ranks, played: each rank has a clock, each message is sent and received.

Where :mod:`nplm_mpi.planning.predicting` adds up a formula for ranks that are all alike, here each rank
computes for as long as one did when it was measured, and waits for those from which it needs something.  A
node's ranks share its connection to the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.models.layout import Layout, Messages
from nplm_mpi.planning.networks import NETWORKS, Link

Clocks = NDArray[np.float64]

UPDATES = 60
"""Played; speeds are those after the first sixth, when ranks have found their turns."""
UNSURE = 1.5
"""How far latency and bandwidth may be from their round figures, as a factor."""
UNSURE_COMPUTING = 1.1
"""How far another machine's computing may be from this one's, which was measured."""


@dataclass(frozen=True)
class Machines:
    """Nodes and what is between them.

    Parameters
    ----------
    network : Link
        Between nodes: latency, and the bandwidth of a node's connection, which its ranks share.
    ranks_per_node : int
    inside : Link
        Between ranks of one node.
    """

    network: Link
    ranks_per_node: int = 1
    inside: Link = NETWORKS["shared-memory"]

    def send(self, clocks: Clocks, senders: NDArray[Any], receivers: NDArray[Any], size: float) -> None:
        """Move the clocks by messages of ``size`` bytes that are sent in the same step.

        A message leaves when its sender is there, which is busy until the last byte has left; its receiver
        goes on when that has come.  Messages that cross a node's connection in the same direction share
        its bandwidth.
        """
        senders, receivers = senders.ravel(), receivers.ravel()
        here, there = senders // self.ranks_per_node, receivers // self.ranks_per_node
        crosses = here != there
        nodes = int(max(here.max(), there.max())) + 1
        leaving = np.bincount(here[crosses], minlength=nodes)[here]
        coming = np.bincount(there[crosses], minlength=nodes)[there]
        shared = np.maximum(np.maximum(leaving, coming), 1)
        latency = np.where(crosses, self.network.latency, self.inside.latency)
        busy = np.where(crosses, size * shared / self.network.bandwidth, size / self.inside.bandwidth)
        left = clocks[senders] + busy
        clocks[senders] = left
        clocks[receivers] = np.maximum(clocks[receivers], left + latency)


# Of a group of ranks (members,), or of many groups at the same time (groups, members).
Algorithm = Callable[[Machines, Clocks, NDArray[Any], float], None]


def doubling(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
    """Recursive doubling: everything to the partner, at distance 1, 2, 4, ..."""
    _among_a_power_of_two(machines, clocks, group, size, _double)


def halving(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
    """Rabenseifner's: halves, quarters, ... are summed up, then put together again."""
    _among_a_power_of_two(machines, clocks, group, size, _halve)


def ring(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
    """A ring: M-th parts go around twice, to be summed up and to be handed out."""
    _around(machines, clocks, group, size / group.shape[-1], 2 * (group.shape[-1] - 1))


ALLREDUCES: dict[str, Algorithm] = {"doubling": doubling, "halving": halving, "ring": ring}


def allgather(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
    """Shares that are put together to ``size`` bytes: the second half of :func:`halving`."""

    def steps(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
        distance = 1
        while distance < group.shape[-1]:
            _exchange(machines, clocks, group, distance, size * distance / group.shape[-1])
            distance *= 2

    _among_a_power_of_two(machines, clocks, group, size, steps)


def _among_a_power_of_two(
    machines: Machines, clocks: Clocks, group: NDArray[Any], size: float, steps: Algorithm
) -> None:
    """Ranks beyond a power of two hand their part to a partner first, and get the result from it at last."""
    most = 1 << (group.shape[-1].bit_length() - 1)
    extra, partners = group[..., most:], group[..., : group.shape[-1] - most]
    if extra.size:
        machines.send(clocks, extra, partners, size)
    steps(machines, clocks, group[..., :most], size)
    if extra.size:
        machines.send(clocks, partners, extra, size)


def _double(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
    distance = 1
    while distance < group.shape[-1]:
        _exchange(machines, clocks, group, distance, size)
        distance *= 2


def _halve(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float) -> None:
    distance = group.shape[-1] // 2
    while distance >= 1:
        _exchange(machines, clocks, group, distance, size * distance / group.shape[-1])
        distance //= 2
    distance = 1
    while distance < group.shape[-1]:
        _exchange(machines, clocks, group, distance, size * distance / group.shape[-1])
        distance *= 2


def _exchange(machines: Machines, clocks: Clocks, group: NDArray[Any], distance: int, size: float) -> None:
    """Each rank and the one at a distance swap ``size`` bytes."""
    machines.send(clocks, group[..., np.arange(group.shape[-1]) ^ distance], group, size)


def _around(machines: Machines, clocks: Clocks, group: NDArray[Any], size: float, steps: int) -> None:
    before = np.roll(group, 1, axis=-1)
    for _ in range(steps):
        machines.send(clocks, before, group, size)


def fastest_allreduce(machines: Machines, group: NDArray[Any], size: float) -> str:
    """The algorithm that an MPI library would take: the fastest one among ranks that come together."""
    best, name = np.inf, "doubling"
    for candidate, play in ALLREDUCES.items():
        least = 2 * (group.shape[-1] - 1) * min(machines.network.latency, machines.inside.latency)
        if candidate == "ring" and least > best:
            continue  # would take long to play, too
        clocks = np.zeros(int(group.max()) + 1)
        play(machines, clocks, group, size)
        if clocks.max() < best:
            best, name = float(clocks.max()), candidate
    return name


@dataclass(frozen=True)
class Played:
    """What was seen of played updates.

    Attributes
    ----------
    seconds : float
        Of an update.
    computing, waiting : float
        Shares of it: an average rank computes; it waits for ranks that are later than itself.
    algorithms : tuple of str
        Of the Allreduces of an update, in their order.
    """

    seconds: float
    computing: float
    waiting: float
    algorithms: tuple[str, ...]


def play(
    machines: Machines,
    layout: Layout,
    sent: Messages,
    computing: float,
    ratios: NDArray[np.float64],
    slow: tuple[float, float] = (0.0, 1.0),
    updates: int = UPDATES,
    seed: int = 1,
) -> Played:
    """Play updates.

    Parameters
    ----------
    machines : Machines
    layout : Layout
        Ranks follow each other along the rows, and fill one node after the other.
    sent : Messages
    computing : float
        Seconds that a rank computes at best.
    ratios : float array
        What its updates took when they were measured, to the best; each is as probable.
    slow : (float, float)
        Share of the nodes that are slower, and how many times as long they take.
    """
    random = np.random.default_rng(seed)
    ranks = np.arange(layout.ranks).reshape(layout.rows, layout.columns)
    nodes = -(-layout.ranks // machines.ranks_per_node)
    speed = np.ones(nodes)
    speed[random.permutation(nodes)[: round(slow[0] * nodes)]] = slow[1]
    base = computing * np.repeat(speed, machines.ranks_per_node)[: layout.ranks]
    groups: list[tuple[NDArray[Any], Algorithm, float]] = []
    algorithms = []
    for members, sizes in ((ranks, sent.row), (ranks.T, sent.column)):
        for size in sizes:
            algorithms.append(fastest_allreduce(machines, members, size))
            groups.append((members, ALLREDUCES[algorithms[-1]], size))
    groups += [(ranks, allgather, size) for size in sent.row_gathered]
    clocks = np.zeros(layout.ranks)
    worked = waited = start = 0.0
    skipped = updates // 6
    for turn in range(updates):
        if turn == skipped:
            start, worked, waited = float(clocks.mean()), 0.0, 0.0
        spent = base * random.choice(ratios, layout.ranks)
        clocks += spent
        worked += float(spent.mean())
        waited += float(clocks.max() - clocks.mean()) if groups else 0.0
        for members, algorithm, amount in groups:
            algorithm(machines, clocks, members, amount)
    whole = float(clocks.mean() if groups else clocks.max()) - start
    return Played(whole / (updates - skipped), worked / whole, waited / whole, tuple(algorithms))


def range_of(
    machines: Machines,
    layout: Layout,
    sent: Messages,
    computing: float,
    ratios: NDArray[np.float64],
    **how: Any,
) -> tuple[Played, Played, Played]:
    """:func:`play` as the figures are, and with figures that are as much worse, and better, as they may be.

    Those of the network by :data:`UNSURE`, computing by :data:`UNSURE_COMPUTING`.
    """
    found = []
    for factor, slower in ((1.0, 1.0), (UNSURE, UNSURE_COMPUTING), (1 / UNSURE, 1 / UNSURE_COMPUTING)):
        other = replace(
            machines,
            network=Link(machines.network.latency * factor, machines.network.bandwidth / factor),
            inside=Link(machines.inside.latency * factor, machines.inside.bandwidth / factor),
        )
        found.append(play(other, layout, sent, computing * slower, ratios, **how))
    return found[0], found[1], found[2]


def as_link(ranks: int, sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """The figures of a network that measured Allreduces among ``ranks`` ranks would have, by doubling."""
    steps = np.log2(ranks)
    latency = seconds[0] / steps
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    # Large ones go by halving and doubling, which send twice (M-1)/M of the bytes.
    return Link(float(latency), float(2 * (ranks - 1) / ranks / max(slope, 1e-15)))
