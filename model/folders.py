"""Atomic replacement of folders."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which then replaces `folder`; after an exception, `folder` is unchanged.

    The replacement takes two renames. If the process is killed between them, the next call restores the old folder
    first.
    """
    folder = folder.resolve()
    partial, former = (folder.with_name(folder.name + suffix) for suffix in (".partial", ".former"))
    if former.exists() and not folder.exists():
        former.rename(folder)
    for leftover in (partial, former):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            folder.rename(former)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(former, ignore_errors=True)
