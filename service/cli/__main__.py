"""`python -m dragoman.service.cli`, for where the command itself is not installed."""

from dragoman.service.cli.group import main

main(prog_name="dragoman")
