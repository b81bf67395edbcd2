"""What all subcommands that call a server share."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dragoman.client import Client, ClientError, Retries, Tls, UnavailableError
from dragoman.client.client import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_SECONDS

TOKEN_VARIABLE = "DRAGOMAN_TOKEN"
"""Environment variable of the caller's token; as an argument everybody on the machine would see it."""

SECURITY = "dragoman.security"
"""Where the context of a command keeps the values of its security options."""

RETRIES = Retries(seconds=3)
"""Whoever sits before the command waits no longer to hear that there is no server."""

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """--address and --timeout-seconds; and those of TLS and token, which `connected` finds by itself."""
    address = click.option(
        "--address",
        default=DEFAULT_ADDRESS,
        envvar="DRAGOMAN_ADDRESS",
        show_envvar=True,
        show_default=True,
        metavar="HOST:PORT",
        help="Where the server listens.",
    )
    timeout = click.option(
        "--timeout-seconds",
        default=DEFAULT_TIMEOUT_SECONDS,
        type=click.FloatRange(0, min_open=True),
        envvar="DRAGOMAN_TIMEOUT_SECONDS",
        show_envvar=True,
        show_default=True,
        help="How long one call may take.",
    )
    return address(timeout(_security_options(command)))


def _security_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            _kept("--tls", is_flag=True, help="Call over TLS; any of the next four does so too."),
            _kept(
                "--ca", type=FILE, help="PEM file of who may have signed the server's certificate, if not the usual."
            ),
            _kept("--client-certificate", type=FILE, help="PEM file of our certificate, if the server wants one."),
            _kept("--client-key", type=FILE, help="PEM file of that certificate's key."),
            _kept("--server-name", default="", help="Name in the server's certificate, if not that of --address."),
            _kept("--token-file", type=FILE, help=f"File that holds our token; it may also stand in {TOKEN_VARIABLE}."),
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
    """--from, --model and --truncate."""
    source = click.option(
        "--from", "source", default="", metavar="LANGUAGE", help="Language of the texts; needed if there are several."
    )
    model = click.option("--model", default="", metavar="NAME", help="Which model; needed if there are several.")
    truncate = click.option("--truncate", is_flag=True, help="Cut texts that are too long, and say so.")
    return source(model(truncate(command)))


@contextmanager
def connected(address: str, timeout_seconds: float) -> Iterator[Client]:
    """A client; what it raises inside becomes an error of the command line."""
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
    """Errors of the client at `address` become errors of the command line."""
    try:
        yield
    except UnavailableError as error:
        hint = "`dragoman serve BUNDLE` starts a server"
        raise click.ClickException(f"{address} does not answer: {error} ({hint})") from error
    except ClientError as error:
        raise click.ClickException(str(error)) from error


def utf8_arguments(texts: Sequence[str]) -> Sequence[str]:
    """Texts of the command line as they are. Raises UsageError for one that is not UTF-8."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise click.UsageError(f"TEXT {number} is not UTF-8.") from error
    return texts
