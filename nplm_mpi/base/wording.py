"""Numbers and names as people read them."""

import re
from typing import Any

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def printable(text: Any) -> str:
    """A text on one line: control characters, which could end the line or steer a terminal, as escapes."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def counted(number: int, what: str) -> str:
    """As in "2 ranks"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """Seconds as ``1h 02m``, ``3m 05s`` or ``4.2s``."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
