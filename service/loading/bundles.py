"""Bundles on disk: finding them, and checking their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.bundle.manifest import MANIFEST_FILE, Bundle, BundleError, open_bundle
from dragoman.service.errors import StartupError
from dragoman.service.system.file_watch import Stamp, folder_stamp


@dataclass(frozen=True)
class FoundBundle:
    """A bundle whose files have been checked, and their stamps from before the check."""

    bundle: Bundle
    stamp: Stamp


def find_bundles(folders: Sequence[Path]) -> list[Path]:
    """The folders among `folders` that are bundles, and the bundles inside the others.

    A folder without any bundle is returned as it is: reading it then gives the error that names it.
    """
    found: list[Path] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob(f"[!.]*/{MANIFEST_FILE}"))
        found += [folder] if (folder / MANIFEST_FILE).is_file() or not inner else inner
    return found


def find_bundle(folder: Path) -> FoundBundle:
    """The bundle now in `folder`, with its stamp. Raises StartupError that names the file at fault."""
    stamp = folder_stamp(folder)
    return FoundBundle(read_bundle(folder), stamp)


def read_bundle(folder: Path) -> Bundle:
    """The bundle in `folder`, its files checked. Raises StartupError that names the file at fault."""
    try:
        return open_bundle(folder)
    except (BundleError, OSError) as error:
        raise StartupError(f"bundle refused: {error}") from error
