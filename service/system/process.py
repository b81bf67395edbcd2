"""Identity of this process."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Dragoman's version; "unknown" when run from a source tree that is not installed."""
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "unknown"
