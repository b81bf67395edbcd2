"""TLS, tokens, and secrets that stay out of logs, metrics and errors."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import generate_latest

from dragoman.client import (
    AsyncClient,
    Client,
    ClientError,
    OverloadedError,
    Tls,
    UnauthenticatedError,
    UnavailableError,
)
from dragoman.service.cli import main
from dragoman.service.errors import StartupError
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from tests.integration.test_metrics import calls, started
from tests.support.certificates import Pair, make_pair
from tests.support.fake_runner import FakeRunner
from tests.support.harness import (
    MAX_CHARACTERS,
    MAX_SOURCE_TOKENS,
    PATIENCE_SECONDS,
    Running,
    eventually,
    health,
    manifest,
    serving,
    token_of,
)

TOKEN, OTHER = "a-token-of-the-tests", "another-token-of-them"

TOO_LONG = ("zebra boat " * (MAX_SOURCE_TOKENS // 2), "zebra " * MAX_CHARACTERS)
"""Too long in tokens, and in characters."""


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_pair(tmp_path, "authority")


@pytest.fixture
def own(tmp_path: Path, authority: Pair) -> Pair:
    """The server's certificate."""
    return make_pair(tmp_path, "own", authority)


@pytest.fixture
def tls_settings(own: Pair) -> ServerSettings:
    return ServerSettings(tls_certificate=str(own.certificate), tls_key=str(own.key))


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# of the tests\n{TOKEN}\n\n")
    return path


@pytest.fixture
def closed(tokens_file: Path) -> ServerSettings:
    return ServerSettings(tokens_file=str(tokens_file))


def write(file: Path, text: str) -> None:
    file.write_text(text)


def client(running: Running, tls: Tls | None = None, token: str = "") -> AsyncClient:
    return AsyncClient(running.address, timeout_seconds=PATIENCE_SECONDS, tls=tls, token=token, retries=None)


async def translates(running: Running, tls: Tls | None = None, token: str = "") -> bool:
    async with client(running, tls, token) as caller:
        return (await caller.translate(["kite"])).texts == ("kite",)


# --- TLS


async def test_callers_that_trust_the_authority_are_answered(tls_settings: ServerSettings, authority: Pair) -> None:
    async with serving(settings=tls_settings) as running:
        assert await translates(running, Tls(authority.certificate))
        assert await translates(running, Tls(authority.certificate, server_name="own.test"))


async def test_callers_without_tls_or_trust_are_refused(tls_settings: ServerSettings, authority: Pair) -> None:
    async with serving(settings=tls_settings) as running:
        for tls in (None, Tls(), Tls(authority.certificate, server_name="somebody.else")):
            with pytest.raises(UnavailableError):
                await translates(running, tls)


async def test_mutual_tls_requires_a_signed_client_certificate(
    tmp_path: Path, tls_settings: ServerSettings, authority: Pair
) -> None:
    settings = tls_settings.model_copy(update={"tls_client_ca": str(authority.certificate)})
    caller, stranger = make_pair(tmp_path, "caller", authority), make_pair(tmp_path, "stranger")
    async with serving(settings=settings) as running:
        assert await translates(running, Tls(authority.certificate, caller.certificate, caller.key))
        for tls in (
            Tls(authority.certificate),
            Tls(authority.certificate, stranger.certificate, stranger.key),
        ):
            with pytest.raises(UnavailableError):
                await translates(running, tls)


async def test_a_replaced_certificate_is_used_for_new_connections(
    tmp_path: Path, own: Pair, tls_settings: ServerSettings, authority: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = Tls(authority.certificate, server_name="own.test"), make_pair(tmp_path, "after", authority)
    async with serving(settings=tls_settings) as running, client(running, before) as early:
        await early.translate(["kite"])
        # The key does not match yet: half of a replacement changes nothing.
        shutil.copy(after.certificate, own.certificate)
        assert await translates(running, before)
        assert "not read anew" in caplog.text
        shutil.copy(after.key, own.key)
        assert await translates(running, Tls(authority.certificate, server_name="after.test"))
        with pytest.raises(UnavailableError):
            await translates(running, before)
        assert (await early.translate(["boat"])).texts == ("boat",)


@pytest.mark.parametrize("fault", ["missing", "mismatch", "garbage", "no key", "no certificate"])
def test_faulty_tls_files_are_named_at_the_start(tmp_path: Path, own: Pair, authority: Pair, fault: str) -> None:
    certificate, key, named = str(own.certificate), str(own.key), str(own.certificate)
    match fault:
        case "missing":
            key = named = str(tmp_path / "nowhere")
        case "mismatch":
            key = named = str(authority.key)
        case "garbage":
            own.certificate.write_text("kite")
        case "no key":
            key, named = "", "tls_key is not set"
        case "no certificate":
            certificate, named = "", "tls_certificate is not set"
    with pytest.raises(StartupError, match=named):
        Server(ServerSettings(tls_certificate=certificate, tls_key=key), manifest())


# --- tokens


async def test_every_method_requires_a_known_token(closed: ServerSettings) -> None:
    async with serving(settings=closed) as running:
        assert await translates(running, token=TOKEN)
        async with client(running) as anonymous, client(running, token=OTHER) as stranger:
            missing, unknown = "a bearer token is required", "the bearer token is not known"
            for caller, message in ((anonymous, missing), (stranger, unknown)):
                for call in (caller.translate(["kite"]), caller.embed(["kite"]), caller.info()):
                    with pytest.raises(UnauthenticatedError, match=f"^{message}$"):
                        await call
        assert running.value("dragoman_refused_total", reason="unauthenticated") == 6
        assert unauthenticated(running) == 6


async def test_health_needs_no_token_but_reflection_does(closed: ServerSettings) -> None:
    async with serving(settings=closed) as running, grpc.aio.insecure_channel(running.address) as channel:
        answer = await health(channel).Check(health_pb2.HealthCheckRequest(service=""))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        known = stub.ServerReflectionInfo(iter([request]), metadata=(("authorization", f"Bearer {TOKEN}"),))
        assert len([answer async for answer in known]) == 1


async def test_tokens_are_replaced_while_the_server_runs(closed: ServerSettings, tokens_file: Path) -> None:
    async with serving(settings=closed) as running, client(running, token=OTHER) as other:
        with pytest.raises(UnauthenticatedError):
            await other.info()
        write(tokens_file, f"{TOKEN}\n{OTHER}\n")
        await other.info()
        assert await translates(running, token=TOKEN)
        write(tokens_file, f"{OTHER}\n")
        await other.info()
        with pytest.raises(UnauthenticatedError):
            await translates(running, token=TOKEN)
        # An emptied file must neither open the server nor shut out every caller.
        write(tokens_file, "")
        await other.info()
        with pytest.raises(UnauthenticatedError):
            await translates(running)


async def test_tokens_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKENS", f"{TOKEN} {OTHER}")
    async with serving() as running:
        assert await translates(running, token=OTHER)
        with pytest.raises(UnauthenticatedError):
            await translates(running)


async def test_calls_beyond_the_rate_get_a_retry_delay(closed: ServerSettings) -> None:
    settings = closed.model_copy(update={"token_calls_per_second": 1})
    async with serving(settings=settings) as running, grpc.aio.insecure_channel(running.address) as channel:
        method = rpc.TranslationServiceStub(channel).GetInfo
        metadata = (("authorization", f"bearer {TOKEN}"),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.gather(*(method(pb.GetInfoRequest(), metadata=metadata) for _ in range(2)))
        assert running.value("dragoman_refused_total", reason="rate") == 1
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    assert 0 < retry.retry_delay.ToMilliseconds() <= 1000


async def test_concurrent_calls_of_a_token_are_bounded(closed: ServerSettings, tokens_file: Path) -> None:
    write(tokens_file, f"{TOKEN}\n{OTHER}\n")
    runner = FakeRunner()
    settings = closed.model_copy(update={"token_calls": 1})
    async with serving(runner, settings=settings) as running, client(running, token=TOKEN) as caller:
        runner.gate.clear()
        first = asyncio.create_task(caller.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        with pytest.raises(OverloadedError, match="this token has 1 of 1 calls running"):
            await caller.translate(["boat"])
        async with client(running, token=OTHER) as other:
            await other.info()
        runner.gate.set()
        assert (await first).texts == ("kite",)
        assert await translates(running, token=TOKEN)


async def test_a_call_counts_before_its_message_arrives(closed: ServerSettings) -> None:
    settings = closed.model_copy(update={"token_calls": 1})
    async with (
        serving(settings=settings) as running,
        grpc.aio.insecure_channel(running.address) as channel,
        client(running, token=TOKEN) as caller,
    ):
        silent: Any = channel.stream_unary("/dragoman.v1.TranslationService/Translate")(
            metadata=(("authorization", f"Bearer {TOKEN}"),)
        )
        await eventually(lambda: started(running, "Translate") == 1)
        with pytest.raises(OverloadedError, match="this token has 1 of 1 calls running"):
            await caller.translate(["boat"])
        silent.cancel()
        await eventually(lambda: calls(running, "Translate", "CANCELLED") == 1)
        assert await translates(running, token=TOKEN)


@pytest.mark.parametrize("token", ["two words", "a\nb", "s\u00e9cret"])
def test_an_invalid_token_is_not_repeated_in_the_error(token: str) -> None:
    with pytest.raises(ValueError, match="^token must be printable ASCII without spaces$"):
        Client(token=token)


async def test_the_command_line_takes_certificates_and_token(
    tmp_path: Path, tls_settings: ServerSettings, authority: Pair, tokens_file: Path
) -> None:
    settings = tls_settings.model_copy(
        update={"tls_client_ca": str(authority.certificate), "tokens_file": str(tokens_file)}
    )
    caller = make_pair(tmp_path, "caller", authority)
    options = ["--ca", authority.certificate, "--client-certificate", caller.certificate, "--client-key", caller.key]
    async with serving(settings=settings) as running:

        def dragoman(*arguments: object, env: dict[str, str] | None = None) -> Result:
            whole = ["translate", "kite", "--address", running.address, *map(str, arguments)]
            return CliRunner().invoke(main, whole, prog_name="dragoman", env=env)

        answered = await asyncio.to_thread(dragoman, *options, env={"DRAGOMAN_TOKEN": TOKEN})
        own_token = tmp_path / "own-token"
        write(own_token, f"{TOKEN}\n")
        answered_too = await asyncio.to_thread(dragoman, *options, "--token-file", own_token)
        refused = await asyncio.to_thread(dragoman, *options)
        half = await asyncio.to_thread(dragoman, *options[:4])
    assert (answered.stdout, answered_too.stdout) == ("kite\n", "kite\n")
    assert refused.stderr == "Error: a bearer token is required\n"
    assert half.stderr.startswith("Error: --client-certificate and --client-key go together")


async def test_texts_and_callers_stay_out_of_logs_metrics_and_errors(
    closed: ServerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    runner = FakeRunner(broken=(token_of("boat"),), poison=(token_of("bird"),))
    errors: list[BaseException] = []
    async with serving(runner, settings=closed) as running:
        async with client(running, token=TOKEN) as caller, client(running, token=OTHER) as stranger:
            await caller.translate(["zebra", "kite"], request_id="7")
            for refused in (
                stranger.translate(["zebra"]),
                *(caller.translate([text]) for text in ("zebra boat", "zebra bird", *TOO_LONG)),
                *(caller.embed([text]) for text in ("boat zebra", "zebra bird", *TOO_LONG)),
            ):
                with pytest.raises(ClientError) as caught:
                    await refused
                errors.append(caught.value)
        scraped = generate_latest(running.server.registry).decode()
    codes = [error.code.name for error in errors if isinstance(error, ClientError)]
    assert codes == ["UNAUTHENTICATED", *(["INTERNAL"] * 2 + ["INVALID_ARGUMENT"] * 2) * 2]
    assert "RuntimeError: broken" in caplog.text
    assert {record.getMessage() for record in caplog.records if record.name == "dragoman.calls"} == {
        "Translate OK",
        *(f"{method} {name}" for method in ("Translate", "Embed") for name in ("INTERNAL", "INVALID_ARGUMENT")),
        "Translate UNAUTHENTICATED",
    }
    # Log lines of every logger; tracebacks stand only in the captured text.
    written = "\n".join((scraped, caplog.text, *map(str, errors), *map(str, map(vars, caplog.records))))
    for secret in (TOKEN, OTHER, "zebra", "boat", "127.0.0.1"):
        assert secret not in written


@pytest.mark.parametrize("log_texts", [True, False], ids=["on", "off"])
async def test_texts_are_logged_only_if_the_settings_ask_for_it(
    log_texts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = ServerSettings(repetition_tokens=0, log_texts=log_texts)
    async with serving(settings=settings) as running, running.client() as caller:
        await caller.translate(["red kite", "boat"])
        await caller.embed(["old tree"])
        with pytest.raises(ClientError):
            await caller.translate(["bird " * MAX_SOURCE_TOKENS])
        # The log line follows the answer.
        await eventually(lambda: len(call_lines(caplog)) == 3)
    texts = {"sources", "translations", "pivot_translations"}
    found = [{name: value for name, value in line.items() if name in texts} for line in call_lines(caplog)]
    if log_texts:
        assert found == [
            {"sources": ["red kite", "boat"], "translations": ["red kite", "boat"]},
            {"sources": ["old tree"]},
            {"sources": ["bird " * MAX_SOURCE_TOKENS]},
        ]
    else:
        assert found == [{}, {}, {}]
        written = "\n".join((caplog.text, *map(str, map(vars, caplog.records))))
        assert not [word for word in ("kite", "boat", "tree", "bird") if word in written]


def call_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Fields of the call log lines so far."""
    return [vars(record)["fields"] for record in caplog.records if record.name == "dragoman.calls"]


def unauthenticated(running: Running) -> float:
    return sum(
        running.value(
            "grpc_server_handled_total",
            grpc_type="unary",
            grpc_service="dragoman.v1.TranslationService",
            grpc_method=method,
            grpc_code="UNAUTHENTICATED",
        )
        for method in ("Translate", "Embed", "GetInfo")
    )
