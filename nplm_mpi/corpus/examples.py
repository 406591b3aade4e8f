"""Which examples make up an epoch, and in which order."""

from collections.abc import Iterator

import numpy as np

from nplm_mpi.corpus import Vocabulary
from nplm_mpi.corpus.contexts import fill_contexts
from nplm_mpi.machine.jit import njit

# About how many contexts are looked up at a time.
CHUNK = 4096


class Examples:
    """The (context, word) pairs of a part of a corpus.

    Parameters
    ----------
    tokens : (T,) int32 array
        The whole corpus; contexts may reach back before ``start``.
    start, stop : int
        The predicted tokens are those of ``tokens[start:stop]``, without the first
        ones of a stream when ``complete`` asks for n-1 words before each.
    order : int
        n.
    vocabulary : Vocabulary
        With a boundary symbol contexts stop at sentence ends and are padded with it;
        without, they run on, and -1 stands for what lies before the first token.
    complete : bool
        Leave out the tokens of a stream that have fewer than n-1 words before them,
        as training does (section 4).
    """

    def __init__(
        self,
        tokens: np.ndarray,
        start: int,
        stop: int,
        order: int,
        vocabulary: Vocabulary,
        complete: bool = False,
    ) -> None:
        sentences = vocabulary.bos is not None
        self.tokens, self.order = tokens, order
        self.bos = vocabulary.bos if sentences else -1
        self.eos = vocabulary.eos if sentences else -1
        self.start = max(start, order - 1) if complete and not sentences else start
        self.stop = max(stop, self.start)

    def __len__(self) -> int:
        return self.stop - self.start

    def look_up(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Contexts (K, n-1) and words (K,), int32, of token positions (K,)."""
        contexts = np.empty((len(positions), self.order - 1), np.int32)
        fill_contexts(self.tokens, positions, self.order, self.bos, self.eos, contexts)
        return contexts, np.asarray(self.tokens[positions], np.int32)

    def batches(
        self, batch: int, first: int = 0, limit: int | None = None, shuffle_key: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Examples ``first`` to ``limit`` of an epoch, ``batch`` at a time.

        Parameters
        ----------
        batch : int
            K; the last one may be smaller.
        first, limit : int
            Where to begin and end, as counts of examples.
        shuffle_key : int, optional
            Visit the examples in the pseudo-random order that this number stands for
            instead of corpus order.

        Yields
        ------
        contexts : (K, n-1) int32 array
        words : (K,) int32 array
        """
        total = len(self) if limit is None else min(limit, len(self))
        chunk = max(1, CHUNK // batch) * batch
        for begin in range(first, total, chunk):
            numbers = np.arange(begin, min(begin + chunk, total))
            if shuffle_key is not None:
                permute(numbers, len(self), np.uint64(shuffle_key))
            contexts, words = self.look_up(self.start + numbers)
            for k in range(0, len(words), batch):
                yield contexts[k : k + batch], words[k : k + batch]


def shuffle_key(seed: int, epoch: int) -> int:
    """The number that stands for an epoch's order, the same on every rank."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


@njit(cache=True, nogil=True)
def permute(numbers: np.ndarray, count: int, key: np.uint64) -> None:
    """Replace each number below ``count`` by its image under a pseudo-random permutation.

    A Feistel network over the next power of four, walked until the image falls below
    ``count``: any position of any epoch can be computed alone, so that an epoch over
    billions of tokens needs no table and a resumed one no replay.
    """
    half = np.uint64(1)
    while half < np.uint64(31) and (np.uint64(1) << (half + half)) < np.uint64(count):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    for i in range(numbers.shape[0]):
        value = np.uint64(numbers[i])
        for _ in range(4 * count + 4):  # no cycle is longer, and few take more than two steps
            left, right = value >> half, value & mask
            for turn in range(6):
                mixed = right + key + np.uint64(turn) * np.uint64(0x9E3779B97F4A7C15)
                mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                mixed ^= mixed >> np.uint64(31)
                left, right = right, left ^ (mixed & mask)
            value = (left << half) | right
            if value < np.uint64(count):
                break
        numbers[i] = np.int64(value)
