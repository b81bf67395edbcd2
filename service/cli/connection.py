"""What all subcommands that call a server share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from dragoman.service.client import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_SECONDS, Client, ClientError, UnavailableError


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """--address and --timeout-seconds."""
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
    return address(timeout(command))


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
    with Client(address, timeout_seconds=timeout_seconds) as client, reported(address):
        yield client


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
