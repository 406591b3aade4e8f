"""Text drawn from a language model, word by word."""

from collections.abc import Iterator, Sequence

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.corpus import EOS
from nplm_mpi.scoring.language_model import LanguageModel

# Where the most probable word is always another one, as with temperature 0, no sentence ends by itself.
LONGEST = 1000


def sharpen(p: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """A distribution made bolder or more timid, without its tail.

    Parameters
    ----------
    p : (V,) float64 array
        Probabilities.
    temperature : float
        p becomes proportional to p^(1/temperature); 0 leaves only the most probable word.
    top_k : int
        Keep only so many words, the most probable (0: all).
    top_p : float
        Then keep only the most probable words that together reach this share.

    Returns
    -------
    (V,) float64 array
        Sums to 1. Of equally probable words the one with the smaller id counts as more probable.
    """
    order = np.argsort(-p, kind="stable")
    kept = p[order]
    if temperature == 0:
        top_k = 1
    else:
        with np.errstate(divide="ignore", over="ignore"):
            logs = np.log(kept / kept[0]) / temperature
        kept = np.exp(logs)
    if top_k > 0:
        kept[top_k:] = 0
    kept /= kept.sum()
    if top_p < 1:
        # Up to and with the word that reaches the share.
        kept[1 + int(np.searchsorted(np.cumsum(kept), top_p)) :] = 0
        kept /= kept.sum()
    result = np.empty(len(p))
    result[order] = kept
    return result


def draw(p: np.ndarray, random: np.random.Generator) -> int:
    """A word id with its probability; uses up one random number."""
    total = np.cumsum(p)
    place = int(np.searchsorted(total, random.random() * total[-1], side="right"))
    return min(place, int(np.flatnonzero(p)[-1]))


def sample_words(
    model: LanguageModel,
    random: np.random.Generator,
    prompt: Sequence[str] = (),
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    unk: bool = True,
    longest: int = LONGEST,
) -> Iterator[str]:
    """Words that continue a prompt: a sentence up to and with ``</s>``, or a stretch of a stream or of lines.

    Parameters
    ----------
    model : LanguageModel
    random : Generator
        The same state gives the same words.
    prompt : sequence of str
        Words that stand at the beginning (of the sentence).
    temperature, top_k, top_p
        See :func:`sharpen`.
    unk : bool
        Whether ``<unk>`` may be drawn.
    longest : int
        So many words at most; a sentence that did not end before is cut there.

    Yields
    ------
    str
        The next word.

    Raises
    ------
    UserError
        If no word can follow.
    """
    context = list(prompt)
    for _ in range(longest):
        p = model.distribution(context)
        if not unk and model.vocabulary.unk is not None:
            p[model.vocabulary.unk] = 0
        if not 0 < p.sum() < np.inf:
            reason = "has a probability" if unk else f"but {model.vocabulary.words[0]} has one; allow that"
            raise UserError(f"{model.path}: no word {reason} after {' '.join(context)!r}")
        word = model.vocabulary.words[draw(sharpen(p, temperature, top_k, top_p), random)]
        yield word
        if word == EOS and model.vocabulary.eos is not None:
            return
        context.append(word)
        del context[: -model.order]
