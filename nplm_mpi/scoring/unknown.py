"""Unknown words get features from their contexts (section 5.1).

A word j that the vocabulary does not hold is seen in a context.  The model's own guess
for that place says what kind of word j is:

    C(j) = sum_i C(i) P(i | context)

and so for everything else that a word has of its own (v of the energy model; U and W of
the network).  Then V grows by one, and of the other words' probabilities only the
normalization changes.  The paper leaves the bias open.  The guess for it would make a
new word as probable as the common ones that it stands for; it gets the mean bias of
the words that training saw least often.

The sum over all words is the paper's.  It is dominated by frequent words, though, and an unknown
word is not one of these: a sum over the rare words only (``among="rare"``) predicts what
follows better, see ``benchmarks/unknown_words.py``.
"""

from typing import Any

import numpy as np

from nplm_mpi.corpus import Vocabulary
from nplm_mpi.models.interface import Kind

# A word that the training text holds at most so often is a rare one.
RARE = 20


def among_rare_words(p: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """P(i | context), given that the word is a rare one: one seen at most 20 times, or ``<unk>``."""
    rare = vocabulary.counts <= RARE
    for boundary in (vocabulary.bos, vocabulary.end):
        if boundary is not None:
            rare[boundary] = False
    if vocabulary.unk is not None:
        rare[vocabulary.unk] = True
    kept = np.where(rare, p, 0)
    return kept / kept.sum() if kept.sum() > 0 else p


def rarest_words(vocabulary: Vocabulary) -> np.ndarray:
    """Ids of the ordinary words that the training text holds least often, but does hold."""
    ids = np.array([i for i in range(len(vocabulary)) if i not in vocabulary.special], np.int64)
    counts = vocabulary.counts[ids]
    seen = counts[counts > 0]
    return ids if len(seen) == 0 else ids[counts == seen.min()]


def grown(kind: Kind, old: Any, p: np.ndarray, rare: np.ndarray) -> Any:
    """The parameters of a model with one word more, which is the mean of all words under ``p``.

    Parameters
    ----------
    kind : Kind
    old : AnyParameters
        All of them.
    p : (V,) array
        Sums to 1.
    rare : array of int
        The words whose mean bias it gets.
    """
    result = kind.new_parameters(old.shape, old.V + 1, old.dtype.name)
    result.scale = old.scale
    after = result.tensors()
    for name, tensor in old.tensors().items():
        target = after[name].array
        if not (tensor.own_rows or name == "C"):
            target[:] = tensor.array
            continue
        target[:-1] = tensor.array
        target[-1] = p @ tensor.array if tensor.weight else tensor.array[rare].mean()
    return result
