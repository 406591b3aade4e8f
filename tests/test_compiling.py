"""After the first moments of a training nothing is left to compile, on any rank."""

import pytest

from tests.helpers.commands import DATA
from tests.helpers.mpi import mpi_run

TINY = ["--corpus", str(DATA / "H15_vocab17.txt"), "--stream", "--min-count", "0", "--split", "400,100,rest"]
TINY += ["--order", "3", "--features", "4", "--hidden", "5", "--epochs", "1", "--batch"]


def compiled_later(arguments: list[str]) -> list[str]:
    """What a rank compiles once ``compile_kernels`` has said that all is ready."""
    from numba.core import event

    from nplm_mpi import comm, train
    from nplm_mpi.training import session

    names: list[str] = []

    class Listener(event.Listener):
        def on_start(self, event):
            names.append(event.data["dispatcher"].py_func.__qualname__)

        def on_end(self, event):
            pass

    compile_kernels = session.compile_kernels

    def watched(*args):
        seconds = compile_kernels(*args)
        event.register("numba:compile", Listener())
        return seconds

    session.compile_kernels = watched
    train.main(comm.world(), arguments)
    return names


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, "1"),
        (2, "1"),
        (2, "4"),
        (3, "16"),
        (2, "16 --collectives two"),
        (2, "16 --model deep"),
        (2, "16 --model energy"),
        (1, "16 --softmax sampled"),
    ],
)
def test_all_is_compiled_before_training_starts(tmp_path, ranks, options):
    cold = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    arguments = [*TINY, *options.split(), "--out", str(tmp_path / "run")]
    assert mpi_run(ranks, compiled_later, arguments, env=cold) == [[]] * ranks
