"""Lines of words as one array of tokens, so that many are scored together."""

from collections.abc import Sequence

import numpy as np

from nplm_mpi.corpus import Vocabulary


def lay_out(
    ids: np.ndarray, lengths: Sequence[int], vocabulary: Vocabulary, order: int, bos: bool, eos: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lines of words as one text in which no context reaches from one line into another.

    Parameters
    ----------
    ids : (T,) int32 array
        The words of all lines.
    lengths : sequence of int
        How many belong to each line.
    vocabulary : Vocabulary
    order : int
        n.
    bos, eos : bool
        As in :meth:`nplm_mpi.scoring.language_model.LanguageModel.score`.

    Returns
    -------
    tokens : int32 array
    positions : int64 array
        What is to be predicted, in the order of the lines.
    is_end : bool array
        Which of the positions are line ends.
    """
    end = vocabulary.end
    # -1 is no word: n-1 of them keep the line before out of sight; a sentence's end does so, too.
    before = 0 if bos and vocabulary.eos is not None else order - 1
    after = 0 if end is None else 1
    size = np.asarray(lengths, np.int64)
    stops = np.cumsum(size + before + after)
    tokens = np.full(int(stops[-1]) if len(stops) else 0, -1, np.int32)
    line_of_word = np.repeat(np.arange(len(size)), size)
    shift = np.arange(1, len(size) + 1) * before + np.arange(len(size)) * after
    places = np.arange(len(ids)) + shift[line_of_word]
    tokens[places] = ids
    if end is None:
        return tokens, places, np.zeros(len(places), bool)
    if vocabulary.lines and bos and before:  # a line begins after the end of another
        tokens[stops - size - after - 1] = end
    tokens[stops - 1] = end
    if not eos:
        return tokens, places, np.zeros(len(places), bool)
    positions = np.sort(np.concatenate([places, stops - 1]))
    is_end = np.zeros(len(tokens), bool)
    is_end[stops - 1] = True
    return tokens, positions, is_end[positions]


class Past:
    """The words that a text began with: contexts of what follows reach back into them.

    Attributes
    ----------
    ids : list of int
        The last of them, in the order of the text; empty before a text's first word.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []

    def continued(
        self, ids: np.ndarray, lengths: Sequence[int], vocabulary: Vocabulary, order: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As :func:`lay_out`, of lines whose contexts run on; these words are the past of the next ones."""
        size = np.asarray(lengths, np.int64)
        tokens = np.full(int(size.sum()) + len(size), vocabulary.end, np.int32)
        stops = np.cumsum(size + 1)
        is_end = np.zeros(len(tokens), bool)
        is_end[stops - 1] = True
        tokens[~is_end] = ids
        tokens = np.concatenate([np.array(self.ids, np.int32), tokens])
        positions = np.arange(len(self.ids), len(tokens))
        self.ids = tokens[max(0, len(tokens) - (order - 1)) :].tolist()
        return tokens, positions, is_end
