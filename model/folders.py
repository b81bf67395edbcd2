"""Folders that are written whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which then takes the place of `folder`; if anything is raised, `folder` stays as it was.

    Where the process is killed between the two renames that this takes, the next call first puts back what was there.
    """
    folder = folder.resolve()
    aside, former = (folder.with_name(folder.name + suffix) for suffix in (".partial", ".former"))
    if former.exists() and not folder.exists():
        former.rename(folder)
    for leftover in (aside, former):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        if folder.exists():
            folder.rename(former)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(former, ignore_errors=True)
