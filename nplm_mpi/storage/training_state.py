"""What a checkpoint says about its training, judged when it is opened: it says nothing that cannot be.

Numbers from a file steer loops, allocate memory and index lists, so each has a type and a range here; what
is not known is let through, since later versions may add it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from nplm_mpi.config.options import LARGEST_NUMBER, shown

Check = Callable[[Any], bool]


def is_count(value: Any, most: int = LARGEST_NUMBER) -> bool:
    """Whether a value is an integer from 0 on, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether a value is a finite number in a range."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= 1e300
        and least <= value <= most
    )


def is_perplexity(value: Any) -> bool:
    """Whether a value is a perplexity, or nothing."""
    return value is None or is_number(value, 0.0)


def is_list_of(check: Check, value: Any, most: int) -> bool:
    """Whether a value is a list of at most so many that pass."""
    return isinstance(value, list) and len(value) <= most and all(map(check, value))


def is_epoch(value: Any) -> bool:
    """Whether a value is an entry of the history."""
    return (
        isinstance(value, dict)
        and is_count(value.get("epoch"))
        and all(is_perplexity(number) for name, number in value.items() if name.endswith("_perplexity"))
    )


def is_overflow(value: Any) -> bool:
    """Whether a value is an entry of the overflows."""
    return isinstance(value, dict) and is_count(value.get("at")) and is_count(value.get("back_to"))


def is_text(value: Any) -> bool:
    """Whether a value tells one text from another."""
    return isinstance(value, dict) and is_count(value.get("tokens"))


# Draws for an update beyond this for each word would never be made.
DRAWS = 16
# More overflows than any run survives would make the rate 0.
OVERFLOWS = 64
EPOCHS = 1 << 24

CHECKS: dict[str, Check] = {
    **dict.fromkeys(("position", "examples", "updates", "masks", "steps", "averagings", "stale"), is_count),
    **dict.fromkeys(("epoch", "best_epoch"), lambda value: is_count(value, EPOCHS)),
    "log_likelihood": lambda value: is_number(value, most=1e3),
    "best": is_perplexity,
    "seconds": lambda value: is_number(value, 0.0),
    "history": lambda value: is_list_of(is_epoch, value, EPOCHS),
    "overflows": lambda value: is_list_of(is_overflow, value, OVERFLOWS),
    "sampled": lambda value: isinstance(value, dict),
    "corpus": is_text,
    "scale": lambda value: is_number(value, 1e-30, 1.0),
    "Q": lambda value: value is None or is_number(value),
    "upwards": lambda value: isinstance(value, bool),
}


def check_state(state: Mapping[str, Any], V: int, samples: int) -> None:
    """Refuse what no training can have written.

    Parameters
    ----------
    state : mapping
        As :func:`nplm_mpi.storage.saving.save` was given it as ``training``, without the arrays.
    V, samples : int
        Words, and the draws that the configuration asks for.

    Raises
    ------
    ValueError
        Naming the value.
    """
    for name, check in CHECKS.items():
        if name in state and not check(state[name]):
            raise ValueError(f"its training says {name} = {shown(state[name])}, which cannot be")
    epoch, history = state.get("epoch", 0), state.get("history", [])
    if len(history) != epoch or state.get("best_epoch", 0) > epoch:
        raise ValueError(f"its training tells of {len(history)} epochs and says that {epoch} are done")
    sampled = state.get("sampled", {})
    most = {"draws": DRAWS * max(V, samples), "made": LARGEST_NUMBER, "exact": LARGEST_NUMBER}
    good = all(is_count(sampled.get(name, 0), limit) for name, limit in most.items())
    if not good or not is_number(sampled.get("owed", 1.0), 0.0, 1.0):
        raise ValueError(f"its training says sampled = {shown(sampled)}, which cannot be")
