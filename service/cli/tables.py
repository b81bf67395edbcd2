"""A table for people."""

from collections.abc import Sequence


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    """One line a row, the second column straight below itself."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)
