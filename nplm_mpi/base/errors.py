"""The one exception that means "the user can mend this": one clear line, exit code 2."""

import contextlib
from collections.abc import Iterator

from nplm_mpi.base.wording import printable


class UserError(Exception):
    """Bad input or bad arguments: a single line that says what, where and what to do.

    Commands print it without a traceback and exit with code 2.

    Attributes
    ----------
    collective : bool
        True if every rank raises the same error at the same point (for example
        after rank 0 shared its failure), so that each may leave quietly; False
        if only this rank knows, so that it must end the others.
    """

    collective = False

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Stop(Exception):
    """All ranks leave together, early but in order: an exit code and one line that says why.

    Every rank raises it at the same point; commands print the line without a traceback.

    Parameters
    ----------
    code : int
        0 when all is well (asked to stop, can be continued), 1 for a failed run,
        128 + number for a signal.
    message : str
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(printable(message))
        self.code = code


@contextlib.contextmanager
def same_on_all_ranks() -> Iterator[None]:
    """Mark user errors raised inside as raised by every rank, as argument errors are."""
    try:
        yield
    except UserError as error:
        error.collective = True
        raise
