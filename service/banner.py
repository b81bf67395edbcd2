"""What a server prints when it is ready, and the line to try next."""

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
    """Plain lines: what is served, where, and what to type to see the first model work."""
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
    """What one model is, and runs on."""
    threads = "1 thread" if model.threads == 1 else f"{model.threads} threads"
    line = f"Serving {model.name}, version {model.version}: {model.precision} on {model.provider}, {threads}."
    return (line, *misfit(model))


def misfit(model: ModelInfo) -> tuple[str, ...]:
    """A warning where the precision is wrong for the processor; mostly nothing."""
    if model.precision == "float16" and model.provider == "CPUExecutionProvider":
        return ("Warning: float16 is meant for CUDA, and slow on the CPU; export int8 or float32 for it.",)
    return ()


def at(host: str, port: int) -> str:
    """HOST:PORT, as addresses are written."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def try_line(languages: Sequence[str], host: str, port: int, model: str = "", tls: bool = False) -> str:
    """A command that translates through the server at `host` and `port`; one that embeds where it has no language.

    `model` is named where there are several.
    """
    near = from_here(host)
    address = "" if (near, port) == (DEFAULT_HOST, DEFAULT_PORT) else f" --address {at(near, port)}"
    secure = " --tls" if tls else ""
    work = f"translate --to {languages[0]}" if languages else "embed"
    named = f" --model {shlex.quote(model)}" if model else ""
    return f'{shlex.quote(_own_command())} {work}{named}{address}{secure} "{EXAMPLE}"'


def _own_command() -> str:
    """How this very command can be called from where it was called."""
    own = Path(sys.argv[0]).absolute()
    if own.name != COMMAND:
        return COMMAND
    if own.is_relative_to(Path.cwd()):
        return str(own.relative_to(Path.cwd()))
    return COMMAND if shutil.which(COMMAND) == str(own) else str(own)
