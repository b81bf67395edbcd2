"""`dragoman info`."""

import click

from dragoman.client import ModelInfo, ServerInfo
from dragoman.service.cli.connection import connected, connection_options
from dragoman.service.cli.tables import table

MIB = 2**20


@click.command(short_help="Show the models, limits and memory of a server.")
@connection_options
def info(address: str, timeout_seconds: float) -> None:
    """Show the models, limits and memory of the server at --address."""
    with connected(address, timeout_seconds) as client:
        click.echo(describe(client.info()))


def describe(server: ServerInfo) -> str:
    """The table that `dragoman info` prints."""
    limits = server.limits
    rows = [
        ("server", server.server_version),
        ("ONNX Runtime", server.runtime_version),
        ("resident memory", _mib(server.resident_memory_bytes)),
        ("of that, libraries", _mib(server.memory.libraries)),
        ("Python, gRPC", f"{_mib(server.memory.interpreter)}, including the runtime, before the first model"),
        ("all models", _mib(sum(model.memory.resident for model in server.models))),
        ("sum of the parts", _mib(server.explained_memory_bytes)),
        (
            "largest request",
            f"{limits.message_bytes} bytes, {limits.texts} texts, {limits.metadata_bytes} bytes of metadata",
        ),
        ("largest answer", f"{limits.answer_bytes} bytes of vectors"),
        ("longest call", f"{limits.call_seconds} s"),
        (
            "connection",
            f"{limits.connection_calls} calls at once, closed after about {limits.connection_age_seconds} s",
        ),
    ]
    if server.pivot_language:
        rows.append(("pivot", f"{server.pivot_language}, for pairs that only two models together cover"))
    for model in server.models:
        rows += [("", ""), *_model_rows(model)]
    return table(rows)


def _model_rows(model: ModelInfo) -> list[tuple[str, str]]:
    memory = model.memory
    return [
        ("model", model.name),
        ("version", model.version),
        ("family", model.family),
        ("from", ", ".join(model.source_languages)),
        ("to", ", ".join(model.target_languages) or "none: embeds only"),
        ("precision", model.precision),
        ("provider", model.provider),
        ("threads", str(model.threads)),
        ("longest source", f"{model.max_source_tokens} tokens, {model.max_source_characters} characters"),
        ("longest output", f"{model.max_output_tokens} tokens"),
        ("embedding", f"{model.embedding_dimension} numbers"),
        ("weights", f"{_mib(memory.weights)} of the weights file"),
        ("buffers", f"{_mib(memory.buffers)}, including weights in the runtime's own layout"),
        ("working memory", _mib(memory.working)),
        (
            "cache",
            f"{_mib(memory.cache_reserved)} reserved, {_mib(memory.cache_resident)} resident, "
            f"{_mib(memory.cache_used)} used",
        ),
    ]


def _mib(count: int) -> str:
    return f"{count / MIB:.1f} MiB"
