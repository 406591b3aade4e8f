"""Models that can be trained further."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.comm import Comm
from nplm_mpi.scoring import language_model
from nplm_mpi.scoring.scorers import ModelScorer
from nplm_mpi.storage import saving


class LanguageModel(language_model.LanguageModel):
    """A model that scores text and can be trained further; made by :func:`load` and ``nplm_mpi.train``.

    Attributes
    ----------
    run_folder : Path or None
        Of the run that made it, if that was ``nplm_mpi.train`` in this process.
    summary : dict
        What that run tells at its end: perplexities, epochs, speed.
    """

    run_folder: Path | None = None
    summary: Mapping[str, Any] = MappingProxyType({})

    def fit_more(self, texts_or_paths: Any, /, preset: str | None = None, **options: Any) -> "LanguageModel":
        """Train on another text, beginning with this model, in a run of its own.

        The vocabulary and the sizes stay; what else was set for this model's training holds unless
        options say otherwise. This object stays as it is.

        Parameters
        ----------
        texts_or_paths, preset, **options
            As for :func:`nplm_mpi.python.training.train`.

        Returns
        -------
        LanguageModel
            The new one.

        Raises
        ------
        UserError
            For an n-gram model, and for one whose file is not what it is: words were added.
        """
        from nplm_mpi.python.training import train

        if not isinstance(self.scorer, ModelScorer):
            raise UserError(f"{self.path}: an n-gram model is not trained further; count all text anew")
        with saving.open_model(self.path) as file:
            if file.vocabulary_words != self.vocabulary.words:
                raise UserError(f"{self.path}: words were added since it was opened, which its file lacks")
        return train(texts_or_paths, preset, init_from=self.path, **options)


def load(path: str | PathLike, comm: Comm | None = None) -> LanguageModel:
    """:func:`nplm_mpi.scoring.language_model.load`, a model that can be trained further."""
    model = language_model.load(path, comm, LanguageModel)
    assert isinstance(model, LanguageModel)
    return model
