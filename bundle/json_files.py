"""Bounded reading of JSON files from untrusted sources."""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20
"""The largest file that is read; the largest known tokenizers have a tenth of this."""


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The parsed file. Raises OSError, or ValueError with its path if it is too large, too deep or not JSON."""
    size = path.stat().st_size
    if size > max_bytes:
        raise ValueError(f"{path}: has {size} bytes, may have {max_bytes}")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{path}: JSON is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """The parsed file, or None if it is missing. Raises ValueError with its path unless it is a JSON object."""
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must be a JSON object")
    return found
