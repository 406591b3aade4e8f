"""JSON as its standard has it."""

import json
import math
from typing import Any


def as_json(value: Any, ascii_only: bool = True, **layout: Any) -> str:
    """A value as strict JSON: null for inf and nan, and bytes of file names that are no text as escapes."""
    text = json.dumps(finite(value), ensure_ascii=ascii_only, allow_nan=False, **layout)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def finite(value: Any) -> Any:
    """A value of JSON's types, in which inf and nan, which JSON lacks, are None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
