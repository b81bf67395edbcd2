"""Files of JSON that others wrote."""

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any] | None:
    """What a file says; None where there is none. Raises ValueError with its name unless it is a JSON object."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must be a JSON object")
    return found
