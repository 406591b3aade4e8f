"""How the network is dealt to the ranks: one row, a grid, or memory shared by all."""

from nplm_mpi.comm import Comm
from nplm_mpi.models.network.grid import Grid, GridModel, shape_of_grid
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.network.optimized import OptimizedModel
from nplm_mpi.models.network.options import NetworkConfig
from nplm_mpi.models.network.parameters import Parameters
from nplm_mpi.models.network.rapid import Rapid
from nplm_mpi.models.network.shared import SharedModel
from nplm_mpi.models.outputs.rows import SPARE
from nplm_mpi.models.outputs.table import deal, new_layer
from nplm_mpi.models.partition import Partition


def new_model(
    comm: Comm,
    shape: NetworkConfig,
    V: int,
    dtype: str,
    batch: int = 1,
    decay: float = 0.0,
    collectives: str = "one",
    grid: str = "",
    reproducible: bool = False,
    parallel: str = "vocabulary",
    threads: int = 1,
    balance: bool = False,
    softmax: str = "exact",
    optimizer: str = "sgd",
    beta1: float = 0.9,
    beta2: float = 0.999,
    self_normalize: float = 0.0,
) -> Model:
    """A model with zeros for parameters. Collective.

    Parameters
    ----------
    collectives : {"one", "two", "paper"}
        With one, and memory that all ranks share, updates are made in compiled code.
    grid : str
        "RxC"; one row of all ranks if empty.
    reproducible : bool
        See :mod:`nplm_mpi.models.outputs.blocks`; for one row only.
    parallel : {"vocabulary", "shared"}
        Sections 3.2 and 3.1.
    threads : int
        Per rank, for one row only.
    balance : bool
        Whether :class:`nplm_mpi.training.balance.Balance` is to deal rows anew; for one row only.
    softmax : str
        A name of :data:`nplm_mpi.models.outputs.table.LAYERS`.
    optimizer, beta1, beta2, self_normalize
        As in :class:`nplm_mpi.config.training.TrainingConfig`; for one row only.

    Raises
    ------
    UserError
        If there are more threads than cores, the grid does not have as many places as there
        are ranks, reproducible sums have fewer blocks, or ranks on several machines are to
        share memory.
    """
    if parallel == "shared":
        return SharedModel(comm, shape, V, dtype, batch, decay)
    rows, columns = shape_of_grid(grid, comm.size) if grid else (1, comm.size)
    if rows == 1:
        spare = SPARE if balance else 0.0
        partition, over = deal(comm, V, threads, reproducible)
        p = Parameters(shape, V, partition, comm.rank, dtype, spare)
        layer = new_layer(softmax, self_normalize)
        if optimizer != "sgd":
            by = optimizer, beta1, beta2
            return OptimizedModel(comm, p, batch, decay, collectives, over, layer, *by)
        in_one = collectives == "one" and threads == 1 and not reproducible and not self_normalize
        sums = comm.shared_sums() if in_one else None
        rapid = Rapid(sums, partition.count(0), p.columns, batch) if sums else None
        return Model(comm, p, batch, decay, collectives, over, rapid, layer=layer)
    layout = Grid(comm, rows, columns)
    p = Parameters(shape, V, Partition(V, columns), layout.row.rank, dtype)
    return GridModel(layout, p, batch, decay, collectives)
