"""Words in the plane: t-SNE or principal components, and a picture with labels that do not overlap."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import told_to_user
from nplm_mpi.base.optional import needed
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.storage.figures import COLORS, picture_format, write_figure

# Of t-SNE (van der Maaten and Hinton 2008): about how many neighbours a word has, and steps.
PERPLEXITY, STEPS = 20.0, 600


def frequent_words(vocabulary: Vocabulary, number: int) -> list[str]:
    """The most frequent words, without the boundary and rare symbols."""
    return [word for i, word in enumerate(vocabulary.words) if i not in vocabulary.special][:number]


def place(vectors: np.ndarray, method: str) -> np.ndarray:
    """Points in the plane for (N, size) vectors: (N, 2); the same every time.

    Raises
    ------
    UserError
        If scikit-learn, which places words by t-SNE, is not installed.
    """
    return principal_components(vectors) if method == "pca" else tsne(vectors)


def principal_components(vectors: np.ndarray) -> np.ndarray:
    """Projections on the two directions of largest variance."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(vectors), 2))
    directions = directions[:2]
    # The sign of a direction is arbitrary: make the largest entry positive.
    for i, direction in enumerate(directions):
        plane[:, i] = centred @ (direction * np.sign(direction[np.abs(direction).argmax()]))
    return plane


def tsne(vectors: np.ndarray, perplexity: float = PERPLEXITY, steps: int = STEPS) -> np.ndarray:
    """t-SNE from the principal components on: nearby vectors become nearby points.

    Raises
    ------
    UserError
        If scikit-learn, which does it, is not installed.
    """
    manifold, N = needed("sklearn.manifold", "scikit-learn"), len(vectors)
    method = manifold.TSNE(
        perplexity=min(perplexity, (N - 1) / 3), init="pca", max_iter=steps, random_state=1
    )
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its clusters of threads
        return method.fit_transform(np.asarray(vectors, np.float32))


def load_pyplot() -> Any:
    """matplotlib without a window.

    Raises
    ------
    UserError
        If it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError("pictures need matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(words: list[str], places: np.ndarray, path: str | Path, title: str) -> int:
    """Write the picture; returns how many words found room for their label.

    Raises
    ------
    UserError
        If matplotlib or textalloc is missing, or the file cannot be written.
    """
    pyplot, textalloc = load_pyplot(), needed("textalloc", "textalloc")
    figure, axes = pyplot.subplots(figsize=(14, 14), dpi=120, layout="constrained")
    axes.scatter(*places.T, s=6, color=COLORS[1], zorder=3)
    axes.set_title(title, fontsize=13, parse_math=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.03)
    figure.canvas.draw()
    # Frequent words choose first; who finds no room has no label.
    _, _, labels, _ = textalloc.allocate(
        axes, *places.T, words, x_scatter=places[:, 0], y_scatter=places[:, 1], textsize=8,
        margin=0.001, min_distance=0.003, max_distance=0.06, draw_all=False,
        linecolor="#bbbbbb", linewidth=0.5, parse_math=False,
    )  # fmt: skip
    try:
        kind = picture_format(figure, path, "--map")
        with told_to_user(f"--map {path}"):
            write_figure(figure, path, kind)
    finally:
        pyplot.close(figure)
    return sum(label is not None for label in labels)
