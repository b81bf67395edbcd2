"""`dragoman`: one command, with a file here for each of the service's own subcommands."""

from dragoman.service.cli.group import main

__all__ = ["main"]
