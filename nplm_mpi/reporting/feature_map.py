"""The words' features in the plane, with each word's neighbours, as a page needs them."""

import base64
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.scoring.vectors import Vectors
from nplm_mpi.scoring.word_map import principal_components, tsne

CLASSES, NEIGHBOURS = 8, 10
# Cosines are shown, and kept, in thousandths, as the neighbors command prints them.
THOUSANDTHS = 1000
# Rows whose cosines with all words are held at a time.
ROWS = 512


@dataclass(frozen=True)
class FeatureMap:
    """The most frequent words of a vocabulary in the plane.

    Attributes
    ----------
    words : list of str
        Those in the plane, the most frequent first, then those that are neighbours only.
    counts : list of int
        How often the training text holds each.
    places : (N, 2) array
    classes : (N,) int array
        Which of :data:`CLASSES` groups of similar words, the largest first.
    class_names : list of str
        The three most frequent words of each group.
    neighbours : (N, up to 10) int array
        Numbers of words, the most similar first.
    cosines : (N, up to 10) int array
        In thousandths.
    method : str
        ``"tsne"`` or ``"pca"``.
    left_out : int
        Words of the vocabulary that are too rare to be shown.
    """

    words: list[str]
    counts: list[int]
    places: np.ndarray
    classes: np.ndarray
    class_names: list[str]
    neighbours: np.ndarray
    cosines: np.ndarray
    method: str
    left_out: int

    def packed(self) -> dict[str, Any]:
        """For JSON, arrays as little-endian numbers in base 64."""
        return {
            "words": self.words,
            "counts": self.counts,
            "x": pack(self.places[:, 0], "<f4"),
            "y": pack(self.places[:, 1], "<f4"),
            "classes": self.classes.tolist(),
            "class_names": self.class_names,
            "width": int(self.neighbours.shape[1]),
            "neighbours": pack(self.neighbours, "<u4"),
            "cosines": pack(self.cosines, "<i2"),
        }


def pack(array: np.ndarray, kind: str) -> str:
    """An array's numbers in base 64."""
    return base64.b64encode(np.ascontiguousarray(array, kind).tobytes()).decode("ascii")


def make_map(vectors: Vectors, number: int, method: str) -> FeatureMap:
    """Lay out the ``number`` most frequent words.

    Raises
    ------
    UserError
        If scikit-learn, which places words by t-SNE, is not installed.
    """
    vocabulary = vectors.vocabulary
    every = np.array([i for i in range(len(vocabulary)) if i not in vocabulary.special], np.int64)
    # Words that were added to a vocabulary stand at its end.
    every = every[np.argsort(-np.asarray(vocabulary.counts)[every], kind="stable")]
    shown = every[:number]
    near, cosines = nearest(vectors, shown, every)
    beyond = np.setdiff1d(near, shown)
    numbers = np.concatenate([shown, beyond])
    place = np.zeros(len(vocabulary), np.int64)
    place[numbers] = np.arange(len(numbers))
    classes = group(vectors.unit[shown])
    return FeatureMap(
        [vocabulary.words[i] for i in numbers],
        np.asarray(vocabulary.counts)[numbers].tolist(),
        lay_out(vectors.unit[shown], method),
        classes,
        [" ".join(vocabulary.words[i] for i in shown[classes == c][:3]) for c in range(classes.max() + 1)],
        place[near],
        cosines,
        method,
        len(every) - len(shown),
    )


def nearest(vectors: Vectors, rows: np.ndarray, every: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each of some words the neighbours as :meth:`Vectors.neighbors` lists them, and thousandths."""
    count = min(NEIGHBOURS, len(every) - 1)
    near = np.empty((len(rows), count), np.int64)
    cosines = np.empty((len(rows), count), np.int64)
    every = np.sort(every)  # of equal cosines the word with the smaller number comes first
    where = np.searchsorted(every, rows)
    others = vectors.unit[every]
    for begin in range(0, len(rows), ROWS):
        block = slice(begin, begin + ROWS)
        found = vectors.unit[rows[block]] @ others.T
        found[np.arange(len(found)), where[block]] = -np.inf
        few = min(4 * NEIGHBOURS, len(every))
        first = np.sort(np.argpartition(-found, few - 1, axis=1)[:, :few], axis=1)
        cosine = np.take_along_axis(found, first, axis=1)
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :count]
        near[block] = every[np.take_along_axis(first, order, axis=1)]
        cosines[block] = np.rint(THOUSANDTHS * np.take_along_axis(cosine, order, axis=1))
    return near, cosines


def lay_out(vectors: np.ndarray, method: str) -> np.ndarray:
    """Points in the plane, (N, 2), the same every time; between -1 and 1."""
    places = tsne(vectors, 30.0, 500) if method == "tsne" else principal_components(vectors)
    places = places - (places.max(axis=0) + places.min(axis=0)) / 2
    return places / max(np.abs(places).max(), 1e-12)


def group(vectors: np.ndarray) -> np.ndarray:
    """Words in groups by k-means of their directions; groups are numbered by size."""
    from scipy.cluster.vq import kmeans2

    if len(vectors) <= CLASSES:
        return np.zeros(len(vectors), np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a group may be empty
        _, label = kmeans2(vectors, CLASSES, minit="++", seed=1, iter=30)
    sizes = np.bincount(label, minlength=CLASSES)
    rank = np.empty(CLASSES, np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(CLASSES)
    return rank[label]
