"""The output layers by name, as ``--softmax`` gives it, and how their rows are dealt."""

from collections.abc import Callable
from functools import partial

from nplm_mpi.comm import Comm
from nplm_mpi.models.outputs.blocks import Blocks, partition_in_blocks
from nplm_mpi.models.outputs.rows import OneSlice
from nplm_mpi.models.outputs.self_normalized import SelfNormalized
from nplm_mpi.models.outputs.softmax import Softmax
from nplm_mpi.models.outputs.threads import Threads, check_threads
from nplm_mpi.models.partition import Partition

# See nplm_mpi.models.outputs.layer.OutputLayer.  Sampled words teach the exact layer, beside its own way
# to learn: nplm_mpi.models.outputs.sampled.
LAYERS: dict[str, type[Softmax]] = {"exact": Softmax, "sampled": Softmax}


def new_layer(softmax: str, self_normalize: float = 0.0) -> Callable[..., Softmax]:
    """What makes the layer of that name, from the arguments of :class:`.softmax.Softmax`."""
    return partial(SelfNormalized, self_normalize) if self_normalize else LAYERS[softmax]


def deal(comm: Comm, V: int, threads: int = 1, reproducible: bool = False) -> tuple[Partition, OneSlice]:
    """How V rows are dealt to ranks, and who goes over the own ones. Collective with threads.

    Raises
    ------
    UserError
        On all ranks, if there are more threads than cores, or more ranks than blocks.
    """
    if reproducible:
        return partition_in_blocks(V, comm.size), Blocks(comm)
    if threads > 1:
        check_threads(comm, threads)
        return Partition(V, comm.size), Threads(comm, threads)
    return Partition(V, comm.size), OneSlice(comm)
