"""A text that rank 0 reads, piece by piece on all ranks.

No rank ever holds all of it: a piece is broadcast as it is wanted, with the tokens before it that
models look back to.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm

PIECE = 1 << 20  # tokens that are predicted together

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Piece:
    """A part of a text.

    Attributes
    ----------
    tokens : (T,) int32 array
        First those that its own are predicted from, as many as models look back to.
    start : int
        Where its own begin, which are predicted.
    """

    tokens: Tokens
    start: int


Pieces = Callable[[int], Iterator[Piece]]
"""The pieces of a text, each with so many tokens before it, if there are any."""


def part_of(tokens: Tokens, start: int, stop: int, size: int = PIECE) -> Pieces:
    """``tokens[start:stop]``, which may be mapped from a file; what lies before ``start`` is context."""

    def cut(reach: int) -> Iterator[Piece]:
        for lo in range(start, stop, size):
            first = max(0, lo - reach)
            yield Piece(np.array(tokens[first : min(lo + size, stop)], np.int32), lo - first)

    return cut


def regrouped(blocks: Iterable[Tokens], size: int = PIECE) -> Pieces:
    """A text that comes in blocks of any sizes."""

    def cut(reach: int) -> Iterator[Piece]:
        held = np.empty(0, np.int32)
        before = 0
        for block in blocks:
            held = np.concatenate((held, block))
            while len(held) - before >= size:
                yield Piece(held[: before + size], before)
                kept = min(before + size, reach)
                held, before = held[before + size - kept :], kept
        if len(held) > before:
            yield Piece(held, before)

    return cut


class Text:
    """A text on rank 0, for all ranks. Constructed collectively; one broadcast.

    Parameters
    ----------
    comm : Comm
    find : callable
        Called on rank 0: what to say about the text, and its pieces.

    Attributes
    ----------
    about : str

    Raises
    ------
    UserError
        As ``find`` does, on all ranks.
    """

    def __init__(self, comm: Comm, find: Callable[[], tuple[str, Pieces]]) -> None:
        self.comm = comm
        self.about: str = comm.on_root(self._find, find)

    def _find(self, find: Callable[[], tuple[str, Pieces]]) -> str:
        about, self._pieces = find()
        return about

    def pieces(self, reach: int) -> Iterator[Piece]:
        """All pieces, in order, on all ranks. Collective: two broadcasts for each, one at the end.

        Parameters
        ----------
        reach : int
            How many tokens to have before each.

        Raises
        ------
        UserError
            On all ranks, for whatever is wrong with the text.
        """
        pieces = self._pieces(reach) if self.comm.is_root else iter(())
        piece: Piece | None = None

        def advance() -> tuple[int, int] | None:
            nonlocal piece
            piece = next(pieces, None)
            return (len(piece.tokens), piece.start) if piece else None

        while found := self.comm.on_root(advance):
            length, start = found
            tokens = piece.tokens if piece else np.empty(length, np.int32)
            self.comm.bcast_array(tokens)
            yield Piece(tokens, start)


def refuse_unknown(blocks: Iterable[Tokens], shown: str) -> None:
    """Raise unless every token is a word of the vocabulary.

    Raises
    ------
    UserError
        Says how many are not.
    """
    oov = sum(int(np.count_nonzero(block < 0)) for block in blocks)
    if oov:
        raise UserError(
            f"--corpus {shown}: {oov:,} words are not in the model's vocabulary, which has no symbol for "
            "them; train the model with --min-count 2 or more"
        )
