"""The `dragoman` command, with one file for each subcommand of the service."""

from dragoman.service.cli.group import main

__all__ = ["main"]
