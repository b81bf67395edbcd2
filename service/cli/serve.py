"""`dragoman serve`: its options are the fields of ServerSettings, one for one."""

import os
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from dragoman.service.settings import ServerSettings, meaning_of, variable_of


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` one option a setting, in the order of the settings."""
    for setting in reversed(fields(ServerSettings)):
        command = _option(setting)(command)
    return command


def _option(setting: "Field[object]") -> Callable[[Callable[..., None]], Callable[..., None]]:
    name = setting.name.replace("_", "-")
    return click.option(
        f"--{name}/--no-{name}" if setting.type is bool else f"--{name}",
        default=setting.default,
        type=_type(setting),
        envvar=variable_of(setting.name),
        show_envvar=True,
        show_default=setting.default != "",
        help=meaning_of(setting).help,
    )


def _type(setting: "Field[object]") -> Any:
    meaning = meaning_of(setting)
    if meaning.choices:
        return click.Choice(meaning.choices)
    if setting.type is int:
        least, most = (None if bound is None else int(bound) for bound in (meaning.minimum, meaning.maximum))
        return click.IntRange(least, most)
    if setting.type is float:
        return click.FloatRange(meaning.minimum, meaning.maximum)
    return setting.type


@click.command(short_help="Serve bundles over gRPC until SIGTERM or SIGINT.")
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@setting_options
def serve(bundles: tuple[Path, ...], **settings: Any) -> None:
    """Serve each BUNDLE, a folder that `dragoman export` wrote or one that holds several, until SIGTERM or SIGINT.

    Calls are answered once all models are loaded, verified and warm; health says so. A call names its model, or
    else gets the one that has its languages. The first signal lets running calls finish, a second one ends the
    server at once.

    On SIGHUP, or by itself with --watch-seconds, a bundle that has changed takes the place of its former version
    while the server serves. Put the new one beside the old and rename it, or turn a symbolic link: to write into
    the files of a bundle that is served breaks the model that runs.
    """
    # gRPC's own lines would stand between those of JSON, one for each stranger who shakes hands badly.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dragoman.service.errors import StartupError
    from dragoman.service.serving import serve as run
    from dragoman.service.telemetry.logs import configure

    try:
        made = ServerSettings(**settings)
        configure(made.log_format, sys.stderr)
        run(made, bundles)
    except (StartupError, ValueError) as error:
        raise click.ClickException(str(error)) from error
