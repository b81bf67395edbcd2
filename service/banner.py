"""The lines that a server prints once it is ready, with a command to try next."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.client.hosts import from_here
from dragoman.client.values import ModelInfo
from dragoman.service.settings import DEFAULT_HOST, DEFAULT_PORT

COMMAND = "dragoman"
EXAMPLE = "The cat sat on the mat."


def announcement(
    models: Sequence[ModelInfo], host: str, port: int, metrics_host: str, metrics_port: int, tls: bool = False
) -> str:
    """Plain lines: the models, the addresses, and a command that tries the first model."""
    first = models[0]
    model = first.name if len(models) > 1 else ""
    return "\n".join(
        (
            *(line for each in models for line in served(each)),
            f"gRPC on {at(host, port)}, metrics on http://{at(metrics_host, metrics_port)}/metrics",
            f"Try: {try_line(first.target_languages, host, port, model, tls)}",
        )
    )


def served(model: ModelInfo) -> tuple[str, ...]:
    """A line about one model and its provider, with a warning if they do not fit."""
    threads = "1 thread" if model.threads == 1 else f"{model.threads} threads"
    line = f"Serving {model.name}, version {model.version}: {model.precision} on {model.provider}, {threads}."
    return (line, *misfit(model))


def misfit(model: ModelInfo) -> tuple[str, ...]:
    """A warning if the precision is wrong for the processor, else nothing."""
    if model.precision == "float16" and model.provider == "CPUExecutionProvider":
        return ("Warning: float16 is meant for CUDA and is slow on the CPU; export int8 or float32 instead.",)
    return ()


def at(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def try_line(languages: Sequence[str], host: str, port: int, model: str = "", tls: bool = False) -> str:
    """A command that translates through the server at `host` and `port`, or embeds if `languages` is empty.

    `model` is "" unless the server has several.
    """
    reachable = from_here(host)
    address = "" if (reachable, port) == (DEFAULT_HOST, DEFAULT_PORT) else f" --address {at(reachable, port)}"
    secure = " --tls" if tls else ""
    work = f"translate --to {languages[0]}" if languages else "embed"
    named = f" --model {shlex.quote(model)}" if model else ""
    return f'{shlex.quote(_own_command())} {work}{named}{address}{secure} "{EXAMPLE}"'


def _own_command() -> str:
    """The shortest name under which the running command can be called from here."""
    own = Path(sys.argv[0]).absolute()
    if own.name != COMMAND:
        return COMMAND
    if own.is_relative_to(Path.cwd()):
        return str(own.relative_to(Path.cwd()))
    return COMMAND if shutil.which(COMMAND) == str(own) else str(own)
