"""Settings that have a name (``--preset``)."""

from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.options import unknown_name


def _table1(order: int, hidden: int, features: int, direct: bool) -> dict[str, Any]:
    """A network of Table 1 with the settings of section 4."""
    return dict(
        order=order,
        hidden=hidden,
        features=features,
        direct=direct,
        batch=1,
        lr=1e-3,
        lr_decay=1e-8,
        weight_decay=1e-4,
        epochs=10 if direct else 20,
    )


_MODERN: dict[str, Any] = dict(
    model="deep",
    direct=False,
    tied=True,
    norm=True,
    activation="gelu",
    init="glorot",
    init_bias="unigram",
    # Plain ascent: Adam and Adagrad fit the training text sooner, and rare words worse.
    optimizer="sgd",
    lr=0.025,
    lr_decay=0.0,
    weight_decay=1e-3,
    schedule="cosine",
    warmup=0.02,
    average=0.999,
    batch=64,
    patience=0,
    shuffle=True,
)
PRESETS: dict[str, dict[str, Any]] = {
    "mlp1": _table1(5, 50, 60, True),
    "mlp3": _table1(5, 0, 60, True),
    "mlp5": _table1(5, 50, 30, True),
    "mlp7": _table1(3, 50, 30, True),
    "mlp9": _table1(5, 100, 30, False),
    "ap": dict(
        order=6,
        hidden=60,
        features=100,
        direct=True,
        batch=1,
        lr=1e-3,
        lr_decay=1e-8,
        weight_decay=1e-5,
        epochs=5,
        treatment="ap",
    ),
    # The energy model of section 5.1 in MLP5's sizes, with a rate that trains well on Brown.
    "energy": dict(
        model="energy",
        per_word_v=True,
        order=5,
        features=30,
        hidden=50,
        direct=False,
        batch=32,
        lr=0.03,
        schedule="cosine",
        weight_decay=3e-5,
        epochs=12,
        patience=0,
        shuffle=True,
        init_bias="unigram",
    ),
    "small": dict(
        order=4,
        hidden=50,
        features=30,
        direct=False,
        batch=16,
        lr=0.02,
        lr_decay=1e-6,
        weight_decay=1e-4,
        epochs=8,
        shuffle=True,
        init_bias="unigram",
    ),
    "modern": _MODERN
    | dict(
        order=129,
        near=8,
        features=160,
        hidden=400,
        dropout_features=0.2,
        dropout_hidden=0.3,
        dropout_outputs=0.2,
        epochs=10,
    ),
    "modern-fast": _MODERN
    | dict(
        order=81,
        near=5,
        features=128,
        hidden=300,
        dropout_features=0.1,
        dropout_hidden=0.2,
        dropout_outputs=0.1,
        epochs=4,
    ),
}


def preset(name: str) -> dict[str, Any]:
    """The options that a preset sets."""
    if name not in PRESETS:
        raise UserError(f"--preset: {unknown_name(name, PRESETS, 'preset')}")
    return dict(PRESETS[name])
