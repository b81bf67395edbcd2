"""Plain-text tables."""

from collections.abc import Sequence
from typing import Literal


def table(rows: Sequence[Sequence[str]], align: Literal["<", ">"] = "<") -> str:
    """One line per row; columns as wide as their longest cell, two spaces apart, aligned left (`<`) or right (`>`)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:{align}{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
