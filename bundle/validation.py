"""Checks shared by every JSON document of a bundle or checkpoint: bounded numbers, no unknown keys, clear errors."""

from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

MAX_NUMBER = 2**31 - 1
"""Upper bound of every integer: a larger one is damage, or an attempt to exhaust memory."""

Count = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
TokenId = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Layers = Annotated[int, Field(ge=0, le=1024)]

STRICT = ConfigDict(extra="forbid")
"""An unknown key is an error: it may be a misspelling, or a rule that this version does not support."""


def explain(error: ValidationError) -> str:
    """One line with every invalid field, its valid values, and its value."""
    return "; ".join(_explain(fault) for fault in error.errors(include_url=False))


def _explain(fault: ErrorDetails) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "value_error":  # raised by a __post_init__, with a complete message
        text = str(fault["ctx"]["error"])
    elif fault["type"] in ("missing", "json_invalid"):  # here the input is the whole surrounding object
        text = fault["msg"]
    else:
        text = f"{fault['msg']} (is {repr(fault['input'])[:60]})"
    return f"{where}: {text}" if where else text
