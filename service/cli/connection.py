"""Options and errors shared by the subcommands that call a server."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dragoman.client import (
    DEFAULT_ADDRESS,
    DEFAULT_TIMEOUT_SECONDS,
    Client,
    ClientError,
    Retries,
    Tls,
    UnavailableError,
)

TOKEN_VARIABLE = "DRAGOMAN_TOKEN"
"""Environment variable of the token. There is no such option: command lines are visible to all users of a machine."""

SECURITY = "dragoman.security"
"""Key of the security options in the context of a command."""

RETRIES = Retries(seconds=3)
"""Shorter than the default: a person at a terminal should soon learn that there is no server."""

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --address, --timeout-seconds, and the options of TLS and token, whose values `connected` finds by itself."""
    address = click.option(
        "--address",
        default=DEFAULT_ADDRESS,
        envvar="DRAGOMAN_ADDRESS",
        show_envvar=True,
        show_default=True,
        metavar="HOST:PORT",
        help="Address of the server.",
    )
    timeout = click.option(
        "--timeout-seconds",
        default=DEFAULT_TIMEOUT_SECONDS,
        type=click.FloatRange(0, min_open=True),
        envvar="DRAGOMAN_TIMEOUT_SECONDS",
        show_envvar=True,
        show_default=True,
        help="Time limit of one call.",
    )
    return address(timeout(_security_options(command)))


def _security_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            _kept("--tls", is_flag=True, help="Connect with TLS; implied by each of the next four options."),
            _kept(
                "--ca",
                type=FILE,
                help="PEM file of the authorities that may sign the server's certificate. Default: those of gRPC.",
            ),
            _kept("--client-certificate", type=FILE, help="PEM file of the client certificate, for mutual TLS."),
            _kept("--client-key", type=FILE, help="PEM file of the client certificate's private key."),
            _kept("--server-name", default="", help="Name in the server's certificate, if it differs from --address."),
            _kept("--token-file", type=FILE, help=f"File of the bearer token. Default: the token in {TOKEN_VARIABLE}."),
        )
    ):
        command = option(command)
    return command


def _kept(
    name: str, *, help: str, type: click.Path | None = None, is_flag: bool = False, default: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option whose value is kept in the context of its command."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        context.meta.setdefault(SECURITY, {})[option.name] = value

    return click.option(
        name,
        type=type,
        is_flag=is_flag,
        default=False if is_flag else default,
        envvar="DRAGOMAN_" + name.strip("-").replace("-", "_").upper(),
        show_envvar=True,
        help=help,
        callback=keep,
        expose_value=False,
    )


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --from, --model and --truncate."""
    source = click.option(
        "--from",
        "source",
        default="",
        metavar="LANGUAGE",
        help="Source language; required if the model has several.",
    )
    model = click.option(
        "--model", default="", metavar="NAME", help="Name of the model; required if several have the languages."
    )
    truncate = click.option("--truncate", is_flag=True, help="Truncate texts that are too long, and report them.")
    return source(model(truncate(command)))


@contextmanager
def connected(address: str, timeout_seconds: float) -> Iterator[Client]:
    """A client of the server at `address`. Raises ClickException for its errors, and for unusable files."""
    kept: dict[str, Any] = click.get_current_context().meta[SECURITY]
    try:
        tls, token = _tls(kept), _token(kept["token_file"])
        client = Client(address, timeout_seconds=timeout_seconds, tls=tls, token=token, retries=RETRIES)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    with client, reported(address):
        yield client


def _tls(kept: dict[str, Any]) -> Tls | None:
    if not (kept["tls"] or kept["ca"] or kept["client_certificate"] or kept["client_key"] or kept["server_name"]):
        return None
    if (kept["client_certificate"] is None) != (kept["client_key"] is None):
        raise click.UsageError("--client-certificate and --client-key go together.")
    return Tls(kept["ca"], kept["client_certificate"], kept["client_key"], kept["server_name"])


def _token(file: Path | None) -> str:
    return os.environ.get(TOKEN_VARIABLE, "") if file is None else file.read_text(encoding="utf-8").strip()


@contextmanager
def reported(address: str) -> Iterator[None]:
    """Raises ClickException for errors of the client that calls `address`."""
    try:
        yield
    except UnavailableError as error:
        hint = "`dragoman serve BUNDLE` starts a server"
        raise click.ClickException(f"{address} does not answer: {error} ({hint})") from error
    except ClientError as error:
        raise click.ClickException(str(error)) from error


def utf8_arguments(texts: Sequence[str]) -> Sequence[str]:
    """The texts of the command line, unchanged. Raises UsageError for one that is not UTF-8."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise click.UsageError(f"TEXT {number} is not UTF-8.") from error
    return texts
