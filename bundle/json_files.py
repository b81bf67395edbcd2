"""Files of JSON that others wrote."""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20
"""Of a file; the largest tokenizers have a tenth of it."""


def read_json(path: Path, most_bytes: int = MAX_BYTES) -> Any:
    """What a file says. Raises OSError, or ValueError with its name where it is too large, too deep or no JSON."""
    size = path.stat().st_size
    if size > most_bytes:
        raise ValueError(f"{path}: has {size} bytes, may have {most_bytes}")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{path}: not JSON that can be read: it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """What a file says; None where there is none. Raises ValueError with its name unless it is a JSON object."""
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must be a JSON object")
    return found
