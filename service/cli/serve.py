"""`dragoman serve`: one option per field of ServerSettings."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from annotated_types import Ge, Le
from click.core import ParameterSource
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dragoman.service.settings import ServerSettings, fault_line, option_of, variable_of


class SettingOption(click.Option):
    """Option of one setting. Shows the environment variable, which ServerSettings itself reads."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return None


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` one option per setting, in the order of the settings."""
    for name, field in reversed(ServerSettings.model_fields.items()):
        command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = option_of(name)
    return click.option(
        f"{flag}/{flag.replace('--', '--no-', 1)}" if field.annotation is bool else flag,
        cls=SettingOption,
        default=field.default,
        type=_type(field),
        envvar=variable_of(name),
        show_envvar=True,
        show_default=field.default != "",
        help=field.description,
    )


def _type(field: FieldInfo) -> Any:
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    if field.annotation is int:
        return click.IntRange(*bounds(field))
    if field.annotation is float:
        return click.FloatRange(*bounds(field))
    return field.annotation


def bounds(field: FieldInfo) -> tuple[Any, Any]:
    """The smallest and the largest value of a number; None where there is no bound."""
    minimum = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
    maximum = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
    return minimum, maximum


@click.command(short_help="Serve bundles over gRPC until SIGTERM or SIGINT.")
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@setting_options
@click.pass_context
def serve(context: click.Context, /, bundles: tuple[Path, ...], **settings: Any) -> None:
    """Serve each BUNDLE, a folder that `dragoman export` wrote or one that holds several, until SIGTERM or SIGINT.

    Calls are answered once all models are loaded, verified and warm, as the health service reports. A call names its
    model or gets the one that has its languages. The first signal lets running calls finish; a second one ends the
    server at once.

    On SIGHUP, or periodically with --watch-seconds, a bundle that has changed replaces its previous version while the
    server keeps serving. Put the new bundle beside the old one and rename it, or switch a symbolic link. Writing into
    the files of a served bundle breaks the running model.
    """
    # gRPC's own lines would break the JSON log, one for each failed handshake of a stranger.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dragoman.service.errors import StartupError
    from dragoman.service.serving import serve as run
    from dragoman.service.telemetry.logs import configure

    given = {name: settings[name] for name in settings if _was_given(context, name)}
    try:
        made = ServerSettings(**given)
    except ValidationError as error:
        raise click.UsageError(fault_line(error, given), context) from error
    try:
        configure(made.log_format, sys.stderr)
        run(made, bundles)
    except (StartupError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
