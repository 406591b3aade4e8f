"""Words per second, time and memory of a layout, and which one to take."""

from dataclasses import dataclass

import numpy as np

from nplm_mpi.planning.costs import Layout, communication_seconds, layouts, memory_per_rank, messages
from nplm_mpi.planning.measure import Profile
from nplm_mpi.planning.networks import Network


@dataclass(frozen=True)
class Prediction:
    """One line of the plan.

    Attributes
    ----------
    ranks, batch : int
    layout : str
        Rows x columns, as ``--grid`` takes it.
    collectives : str
        One of the kind's schedules.
    words_per_second : float
    seconds_per_epoch : float
        Of training, without evaluation.
    communication : float
        Share of the time.
    bytes_per_rank : float
        Memory of the largest rank.
    bytes_per_update, calls_per_update : int
        Sent by a rank, as :attr:`nplm_mpi.comm.Comm.traffic` counts them.
    """

    ranks: int
    batch: int
    layout: str
    collectives: str
    words_per_second: float
    seconds_per_epoch: float
    communication: float
    bytes_per_rank: float
    bytes_per_update: int
    calls_per_update: int


def predict(
    profile: Profile,
    network: Network,
    dtype: str,
    V: int,
    examples: int,
    K: int,
    layout: Layout,
    collectives: str,
) -> Prediction:
    """Words per second and the rest of one layout. Collective: it may measure."""
    shape, itemsize = profile.shape, np.dtype(dtype).itemsize
    sent = messages(shape, V, K, itemsize, collectives, layout, 0, profile.settings)
    computing = profile.update_seconds(V, K, layout, collectives)
    talking = communication_seconds(network, layout, sent)
    speed = K / (computing + talking)
    return Prediction(
        ranks=layout.ranks,
        batch=K,
        layout=str(layout),
        collectives=collectives if layout.columns > 1 else "none" if layout.rows == 1 else "columns",
        words_per_second=speed,
        seconds_per_epoch=examples / speed,
        communication=talking / (computing + talking),
        bytes_per_rank=memory_per_rank(shape, V, K, itemsize, layout, profile.settings),
        bytes_per_update=sent.bytes,
        calls_per_update=len(sent.row) + len(sent.column) + len(sent.row_gathered),
    )


def every_layout(
    profile: Profile,
    network: Network,
    dtype: str,
    V: int,
    examples: int,
    ranks: list[int],
    batches: list[int],
    schedules: tuple[str, ...],
) -> list[Prediction]:
    """:func:`predict` for all layouts of these numbers of ranks and examples. Collective."""
    return [
        predict(profile, network, dtype, V, examples, K, layout, collectives)
        for M in ranks
        for K in batches
        for layout in layouts(M, K, profile.shape.model)
        for collectives in (schedules if layout.columns > 1 else schedules[:1])
    ]


def best_layouts(candidates: list[Prediction]) -> list[Prediction]:
    """The fastest layout for each number of ranks and K."""
    best: dict[tuple[int, int], Prediction] = {}
    for candidate in candidates:
        key = (candidate.ranks, candidate.batch)
        if key not in best or candidate.words_per_second > best[key].words_per_second:
            best[key] = candidate
    return list(best.values())


def recommendation(table: list[Prediction], ranks: int) -> str:
    """A sentence for the largest number of ranks that was asked about."""
    chosen = max((p for p in table if p.ranks == ranks), key=lambda p: p.words_per_second)
    grid = "" if chosen.layout.startswith("1x") else f" --grid {chosen.layout}"
    options = f"--batch {chosen.batch}{grid}"
    text = f"{ranks} ranks: {options}: {chosen.words_per_second:,.0f} words/s"
    smaller = [
        p
        for p in table
        if p.batch == chosen.batch
        and p.ranks < ranks
        and p.words_per_second >= 0.95 * chosen.words_per_second
    ]
    if smaller:
        fewest = min(smaller, key=lambda p: p.ranks)
        text += (
            f"; {fewest.ranks} ranks ({fewest.layout}) do {fewest.words_per_second:,.0f}, so more are wasted"
        )
    elif chosen.communication > 0.5:
        text += f"; {chosen.communication:.0%} of the time is communication: a larger K uses ranks better"
    return text
