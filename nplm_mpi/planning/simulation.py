"""The lines of ``plan --simulate``: updates played, failures reckoned in, and what to take."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nplm_mpi.base.wording import duration
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.models.layout import Layout
from nplm_mpi.planning.costs import messages
from nplm_mpi.planning.failures import Failures
from nplm_mpi.planning.measure import Profile
from nplm_mpi.planning.networks import Measured, Network
from nplm_mpi.planning.predicting import Prediction
from nplm_mpi.planning.simulating import Machines, as_link, range_of

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Cluster:
    """What the simulation is told of the machines.

    Attributes
    ----------
    ranks_per_node : int
    slow : (float, float)
        Share of the nodes that are slower, and by which factor.
    node_hours : float
        Between two failures of one node, on average.
    disk : float
        Bytes per second that checkpoints are written with.
    restart : float
        Seconds from a failure until training goes on.
    """

    ranks_per_node: int
    slow: tuple[float, float]
    node_hours: float
    disk: float
    restart: float


@dataclass(frozen=True)
class Simulated:
    """One line.

    Attributes
    ----------
    ranks, batch : int
    layout, collectives : str
    words_per_second, lowest, highest : float
        Played; and between which two it is if the figures are off as far as they may be.
    computing, waiting : float
        Shares of the time of an average rank.
    algorithms : tuple of str
    interval : float
        Seconds between checkpoints that lose least.
    lost_per_day : float
        Hours of a day that failures and checkpoints take.
    failures_per_day : float
    """

    ranks: int
    batch: int
    layout: str
    collectives: str
    words_per_second: float
    lowest: float
    highest: float
    computing: float
    waiting: float
    algorithms: tuple[str, ...]
    interval: float
    lost_per_day: float
    failures_per_day: float

    @property
    def useful(self) -> float:
        """Words per second of a day with its failures."""
        return self.words_per_second * (1 - self.lost_per_day / 24)


def checkpoint_bytes(profile: Profile, V: int) -> float:
    """Of a checkpoint: all parameters, the weights twice, since their common scale belongs to them."""
    p = KINDS[profile.shape.model].new_parameters(profile.shape, V, profile.dtype)
    return float(sum(t.array.nbytes * (2 if t.weight else 1) for t in p.tensors().values()))


def simulate(
    profile: Profile, network: Network, V: int, lines: list[Prediction], cluster: Cluster
) -> list[Simulated]:
    """Play each line of a plan. Collective: it measures; the same on all ranks."""
    found = []
    save = checkpoint_bytes(profile, V) / cluster.disk
    for line in lines:
        rows, columns = map(int, line.layout.split("x"))
        layout = Layout(rows, columns)
        schedule = line.collectives if columns > 1 else "one"
        itemsize = np.dtype(profile.dtype).itemsize
        sent = messages(profile.shape, V, line.batch, itemsize, schedule, layout, 0, profile.settings)
        computing = profile.update_seconds(V, line.batch, layout, schedule)
        ratios = profile.ratios(V, line.batch, layout)
        link = (
            as_link(network.ranks, network.sizes, network.seconds)
            if isinstance(network, Measured)
            else network
        )
        machines = Machines(link, cluster.ranks_per_node)
        played = range_of(machines, layout, sent, computing, ratios, slow=cluster.slow)
        nodes = -(-line.ranks // cluster.ranks_per_node)
        failures = Failures(cluster.node_hours * 3600 / nodes, save, cluster.restart)
        interval = failures.best_interval()
        speed, lowest, highest = (line.batch / p.seconds for p in played)
        found.append(
            Simulated(
                line.ranks,
                line.batch,
                line.layout,
                line.collectives,
                speed,
                lowest,
                highest,
                played[0].computing,
                played[0].waiting,
                played[0].algorithms,
                interval,
                failures.hours_lost_per_day(interval),
                SECONDS_PER_DAY / failures.between,
            )
        )
    return found


HEADER = (
    "ranks", "K", "rows x columns", "Allreduce", "words/s", "range", "computing", "waiting",
    "failures/day", "save every", "lost/day",
)  # fmt: skip


def cells(line: Simulated) -> tuple[str, ...]:
    """A line of the table under :data:`HEADER`."""
    return (
        f"{line.ranks:,}", f"{line.batch:,}", line.layout, "+".join(line.algorithms) or "none",
        f"{line.words_per_second:,.0f}", f"{line.lowest:,.0f} to {line.highest:,.0f}",
        f"{line.computing:.0%}", f"{line.waiting:.0%}", f"{line.failures_per_day:.2g}",
        duration(line.interval), f"{line.lost_per_day * 60:,.1f} min",
    )  # fmt: skip


def advice(lines: list[Simulated]) -> list[str]:
    """For each number of ranks the options to take, and how sure that is."""
    found = []
    for ranks in sorted({line.ranks for line in lines}):
        mine = [line for line in lines if line.ranks == ranks]
        best = max(mine, key=lambda line: line.useful)
        grid = "" if best.layout.startswith("1x") else f" --grid {best.layout}"
        save = f" --checkpoint-every {max(1, round(best.interval / 60))}m"
        rivals = [line for line in mine if line is not best and line.highest > best.lowest]
        sure = (
            f"not sure: --batch {' or '.join(str(line.batch) for line in rivals)} may be as fast; try them"
            if rivals
            else "sure, if latency and bandwidth are within 1.5 times of these figures"
            if len(mine) > 1
            else f"{best.lowest:,.0f} to {best.highest:,.0f}"
        )
        found.append(
            f"{ranks:,} ranks: --batch {best.batch}{grid}{save}: {best.useful:,.0f} words/s ({sure})"
        )
    return found


def as_rows(lines: list[Simulated]) -> list[dict[str, Any]]:
    """The lines as JSON has them."""
    return [asdict(line) | {"useful_words_per_second": line.useful} for line in lines]
