"""Words in the plane: t-SNE or principal components, and a picture with labels that do not overlap."""

from pathlib import Path
from typing import Any

import numpy as np

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import told_to_user
from nplm_mpi.corpus import Vocabulary
from nplm_mpi.storage.figures import picture_format, write_figure

# t-SNE (van der Maaten and Hinton 2008, section 3.4): steps, how long forces of
# attraction are exaggerated and how much, and the momentum before and after.
STEPS, EARLY, EXAGGERATION = 600, 150, 4.0
MOMENTUM = 0.5, 0.8
PERPLEXITY = 20.0


def frequent_words(vocabulary: Vocabulary, number: int) -> list[str]:
    """The most frequent words, without the boundary and rare symbols."""
    return [word for i, word in enumerate(vocabulary.words) if i not in vocabulary.special][:number]


def place(vectors: np.ndarray, method: str) -> np.ndarray:
    """Points in the plane for (N, size) vectors: (N, 2); the same every time."""
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


def tsne(vectors: np.ndarray) -> np.ndarray:
    """t-SNE with all pairs, from the principal components on: nearby vectors become nearby points."""
    N = len(vectors)
    p = neighbour_probabilities(squared_distances(vectors), min(PERPLEXITY, (N - 1) / 3))
    p = (p + p.T) / (2 * N)
    y = principal_components(vectors)
    y *= 1e-4 / max(y.std(), 1e-12)
    velocity, gain = np.zeros_like(y), np.ones_like(y)
    rate = max(N / EXAGGERATION / 4, 10.0)
    for step in range(STEPS):
        pull = p * EXAGGERATION if step < EARLY else p
        heavy = 1 / (1 + squared_distances(y))  # Student's t, one degree of freedom
        np.fill_diagonal(heavy, 0)
        force = (pull - heavy / heavy.sum()) * heavy
        gradient = 4 * (force.sum(axis=1, keepdims=True) * y - force @ y)
        gain = np.where(np.sign(gradient) != np.sign(velocity), gain + 0.2, gain * 0.8).clip(0.01)
        velocity = MOMENTUM[step >= EARLY] * velocity - rate * gain * gradient
        y = y + velocity
        y -= y.mean(axis=0)
    return y


def squared_distances(x: np.ndarray) -> np.ndarray:
    """Between all rows of (N, size): (N, N), never negative."""
    squares = (x * x).sum(axis=1)
    return np.maximum(squares[:, None] + squares[None, :] - 2 * x @ x.T, 0)


def neighbour_probabilities(distances: np.ndarray, wanted: float) -> np.ndarray:
    """Rows of Gaussian weights, each as wide as gives it the wanted perplexity; zero on the diagonal."""
    N = len(distances)
    p = np.zeros((N, N))
    for i in range(N):
        others = np.delete(distances[i], i)
        others = others - others.min()
        low, high, beta = 0.0, np.inf, 1.0 / max(others.mean(), 1e-12)
        for _ in range(60):
            weights = np.exp(-others * beta)
            share = weights / weights.sum()
            entropy = np.log(weights.sum()) + beta * (share * others).sum()
            if abs(entropy - np.log(wanted)) < 1e-5:
                break
            if entropy > np.log(wanted):
                low, beta = beta, beta * 2 if high == np.inf else (beta + high) / 2
            else:
                high, beta = beta, (beta + low) / 2
        p[i, np.arange(N) != i] = share
    return p


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
        If matplotlib is missing or the file cannot be written.
    """
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(14, 14), dpi=120, layout="constrained")
    axes.scatter(*places.T, s=6, color="#c44e52", zorder=3)
    axes.set_title(title, fontsize=13, parse_math=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.03)
    figure.canvas.draw()
    points = axes.transData.transform(places)
    frame = axes.get_window_extent()
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    labelled = 0
    # Frequent words choose first.
    for i, word in enumerate(words):
        label = axes.annotate(
            word, places[i], xytext=(0, 0), textcoords="offset pixels", fontsize=8, parse_math=False
        )
        extent = label.get_window_extent()
        width, height = extent.width, extent.height
        room = free_offset(points[i], width, height, [box for j, box in enumerate(taken) if j != i], frame)
        if room is None:
            label.remove()
            continue
        label.set_position(room)
        x, y = points[i] + room
        taken.append((x, y, x + width, y + height))
        labelled += 1
    try:
        kind = picture_format(figure, path, "--map")
        with told_to_user(f"--map {path}"):
            write_figure(figure, path, kind)
    finally:
        pyplot.close(figure)
    return labelled


def free_offset(
    point: np.ndarray, width: float, height: float, taken: list[tuple[float, ...]], frame: Any
) -> tuple[float, float] | None:
    """Where beside a point, in pixels, a label of this size covers nothing; None if nowhere."""
    boxes = np.array(taken)
    for gap in (4, 10, 18, 28, 40):
        for dx, dy in (
            (gap, -height / 2), (-gap - width, -height / 2), (-width / 2, gap), (-width / 2, -gap - height),
            (gap, gap), (-gap - width, gap), (gap, -gap - height), (-gap - width, -gap - height),
        ):  # fmt: skip
            x, y = point[0] + dx, point[1] + dy
            inside = frame.x0 < x and x + width < frame.x1 and frame.y0 < y and y + height < frame.y1
            overlap = (
                (boxes[:, 0] < x + width) & (x < boxes[:, 2]) & (boxes[:, 1] < y + height) & (y < boxes[:, 3])
            )
            if inside and not overlap.any():
                return dx, dy
    return None
