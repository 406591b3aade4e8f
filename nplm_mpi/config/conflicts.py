"""Options that do not go together: one table, with the reason for each.

Here stand those of the options that all kinds of models share; what a kind of model does not go with
stands with its options, in the same form.  The documentation prints all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.options import flag, typed


@dataclass(frozen=True)
class Asked:
    """An option that is asked for.

    Parameters
    ----------
    name : str
    values : tuple
        Which values count; if empty, all but the default.
    """

    name: str
    values: tuple[Any, ...] = ()

    def holds(self, options: dict[str, tuple[Any, Any]]) -> bool:
        """Whether it is asked for among options, given as (value, default) by name."""
        if self.name not in options:
            return False
        value, default = options[self.name]
        return value in self.values if self.values else value != default

    def __str__(self) -> str:
        if not self.values:
            return flag(self.name)
        if len(self.values) == 1:
            return typed(self.name, self.values[0])
        return f"{flag(self.name)} {' or '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Conflict:
    """Two options that do not go together, and a sentence that says why."""

    one: Asked
    other: Asked
    reason: str


def lacks(kind: str, name: str, reason: str, *values: Any) -> Conflict:
    """A kind of model that does not go with an option, or with some of its values."""
    return Conflict(Asked("model", (kind,)), Asked(name, values), reason)


_GRID, _SHARED, _THREADS = Asked("grid"), Asked("parallel", ("shared",)), Asked("threads")
_BALANCE, _REPRODUCIBLE = Asked("balance"), Asked("reproducible")
_SAMPLED = Asked("softmax", ("sampled",))
_SELF = Asked("self_normalize")

CONFLICTS = (
    Conflict(_GRID, _SHARED, "ranks that share memory form no grid"),
    Conflict(_THREADS, _GRID, "start as many ranks instead, in longer rows"),
    Conflict(_THREADS, _SHARED, "start as many ranks instead: they share the memory, too"),
    Conflict(_THREADS, _REPRODUCIBLE, "start as many ranks instead: the model is the same"),
    Conflict(_BALANCE, _GRID, "the ranks of a column hold the same slice, however fast they are"),
    Conflict(_BALANCE, _SHARED, "ranks that share memory own no slices"),
    Conflict(_BALANCE, _REPRODUCIBLE, "slices that follow a clock are others in another run"),
    Conflict(
        _REPRODUCIBLE,
        Asked("collectives", ("two", "paper")),
        "their sums are added up in the ranks' order, which depends on how many there are",
    ),
    Conflict(_REPRODUCIBLE, _GRID, "a grid sums in the ranks' order, which depends on how many there are"),
    Conflict(_REPRODUCIBLE, _SHARED, "who changes shared memory first is left to chance"),
    Conflict(Asked("init_from"), Asked("init_vectors"), "the word features are the model's"),
    Conflict(
        Asked("schedule", ("plateau",)),
        Asked("evaluate", (False,)),
        "the rate follows the validation perplexity",
    ),
    Conflict(_SELF, _SAMPLED, "sampled words do not tell the sum over all"),
    Conflict(_SELF, _GRID, "the rows of a grid sum the gradient of log P alone"),
    Conflict(_SELF, _SHARED, "ranks that share memory make each update alone, without the penalty"),
    Conflict(_SAMPLED, _GRID, "the words are drawn once for all examples of an update, not for a row's"),
    Conflict(_SAMPLED, _SHARED, "ranks that share memory make each update alone, over all words"),
    Conflict(_SAMPLED, _THREADS, "a rank's few sampled rows are too little for several threads"),
    Conflict(_SAMPLED, _BALANCE, "time depends on which words are drawn, not on the sizes of the slices"),
    Conflict(_SAMPLED, _REPRODUCIBLE, "the sums over sampled words are added up in the ranks' order"),
)


def refuse_conflicts(options: dict[str, tuple[Any, Any]], conflicts: Iterable[Conflict]) -> None:
    """Raise :class:`nplm_mpi.base.errors.UserError` for the first conflict among options.

    Parameters
    ----------
    options : dict
        (value, default) by name.
    conflicts : iterable of Conflict
    """
    for conflict in conflicts:
        if conflict.one.holds(options) and conflict.other.holds(options):
            one, other = (typed(a.name, options[a.name][0]) for a in (conflict.one, conflict.other))
            raise UserError(f"{one} does not go with {other}: {conflict.reason}; change one of them")
