"""`python -m dragoman.service.cli`, for environments without the installed command."""

from dragoman.service.cli.group import main

main(prog_name="dragoman")
