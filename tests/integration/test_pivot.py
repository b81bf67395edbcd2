"""Calls through a pivot language, by two models of one server."""

import asyncio
import logging
import re

import pytest

from dragoman.client import (
    FinishReason,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    Pivot,
    TimedOutError,
    UnavailableError,
)
from dragoman.service.errors import StartupError
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.integration.test_command_line import dragoman
from tests.integration.test_health import SERVICE
from tests.integration.test_several import Backwards, several
from tests.support.fake_runner import FakeRunner
from tests.support.harness import PATIENCE_SECONDS, Clock, eventually, loopback, manifest, text_of, token_of

FIRST = manifest(name="fr-en", source_languages=("fr",), target_languages=("en",))
SHORT = manifest(name="fr-en", source_languages=("fr",), target_languages=("en",), max_output_tokens=10)
SECOND = manifest(name="en-de", source_languages=("en",), target_languages=("de",))
DIRECT = manifest(name="fr-de", source_languages=("fr",), target_languages=("de",))

THROUGH_ENGLISH = ServerSettings(pivot="en", repetition_tokens=0)


async def test_two_models_cover_a_pair_and_the_reply_has_both_legs() -> None:
    models = ((FakeRunner(), FIRST), (Backwards(), SECOND))
    async with several(*models, settings=THROUGH_ENGLISH) as running, running.client() as client:
        result = await client.translate(["old red kite", " ", "boat"], source="fr-CA", to="de", request_id="mine")
        assert result.texts == ("kite red old", "", "boat")
        assert (result.model, result.model_version, result.request_id) == ("en-de", SECOND.version, "mine")
        assert isinstance(result.pivot, Pivot)
        assert (result.pivot.language, result.pivot.model) == ("en", "fr-en")
        assert result.pivot.model_version == FIRST.version
        assert [each.text for each in result.pivot.translations] == ["old red kite", "", "boat"]
        assert [each.output_tokens for each in result.pivot.translations] == [4, 0, 2]
        assert [each.source_tokens for each in result.translations] == [4, 0, 2]
        assert {each.finish_reason for each in result.translations} == {FinishReason.END}
        assert result.pivot.translations[0].score is not None
        for name, language in (("fr-en", "en"), ("en-de", "de")):
            labels = {"model": name, "operation": "translate", "target_language": language}
            assert running.value("dragoman_texts_total", **labels) == 3
        unscored = await client.translate(["kite"], source="fr", to="de", scores=False)
        assert unscored.pivot
        assert (unscored.translations[0].score, unscored.pivot.translations[0].score) == (None, None)


async def test_there_is_no_pivot_by_default() -> None:
    async with several((FakeRunner(), FIRST), (FakeRunner(), SECOND)) as running, running.client() as client:
        with pytest.raises(InvalidArgumentError, match="'de' from 'fr' is not offered"):
            await client.translate(["kite"], source="fr", to="de")
        assert (await client.info()).pivot_language == ""


async def test_a_direct_or_named_model_is_preferred_to_two() -> None:
    models = ((FakeRunner(), FIRST), (FakeRunner(), SECOND), (Backwards(), DIRECT))
    async with several(*models, settings=THROUGH_ENGLISH) as running, running.client() as client:
        result = await client.translate(["red kite"], source="fr", to="de")
        assert (result.texts, result.model, result.pivot) == (("kite red",), "fr-de", None)
        with pytest.raises(InvalidArgumentError, match="source_language 'fr' is not known; this model has en"):
            await client.translate(["kite"], source="fr", to="de", model="en-de")
        with pytest.raises(NotFoundError):
            await client.translate(["kite"], source="fr", to="de", model="nope")


async def test_the_first_model_s_finish_reason_is_reported() -> None:
    models = ((FakeRunner(endless=(token_of("dog"),)), SHORT), (FakeRunner(), SECOND))
    async with several(*models, settings=THROUGH_ENGLISH) as running, running.client() as client:
        result = await client.translate(["dog", "kite"], source="fr", to="de")
        assert [each.finish_reason for each in result.translations] == [FinishReason.LENGTH, FinishReason.END]
        assert result.pivot
        assert result.pivot.translations[0].finish_reason is FinishReason.LENGTH


async def test_the_output_limit_applies_to_the_second_model_alone() -> None:
    models = ((FakeRunner(), FIRST), (FakeRunner(), SECOND))
    async with several(*models, settings=THROUGH_ENGLISH) as running, running.client() as client:
        result = await client.translate(["old red kite"], source="fr", to="de", max_output_tokens=2)
        assert (result.texts, result.translations[0].finish_reason) == (("old red",), FinishReason.LENGTH)
        assert result.pivot
        assert result.pivot.translations[0].text == "old red kite"
        with pytest.raises(InvalidArgumentError, match="max_output_tokens must be at least 0, is -1"):
            await client.translate(["kite"], source="fr", to="de", max_output_tokens=-1)
        assert running.value("dragoman_finished_total", model="fr-en", reason="end") == 1, "the bad call never ran"


async def test_a_text_too_long_for_the_second_model_is_refused_or_cut() -> None:
    models = ((FakeRunner(endless=(token_of("dog"),)), FIRST), (FakeRunner(), SECOND))
    async with several(*models, settings=THROUGH_ENGLISH) as running, running.client() as client:
        with pytest.raises(InvalidArgumentError, match=r"texts\[1\] in 'en' has 49 tokens, the limit is 24; shorten"):
            await client.translate(["kite", "dog"], source="fr", to="de")
        with pytest.raises(InvalidArgumentError, match=r"texts\[1\] has 25 tokens, the limit is 24"):
            await client.translate(["kite", text_of(25)], source="fr", to="de")
        result = await client.translate(["kite", "dog", text_of(25)], source="fr", to="de", truncate=True)
        assert [each.source_truncated for each in result.translations] == [False, True, True]
        assert result.pivot
        assert [each.source_truncated for each in result.pivot.translations] == [False, False, True]


async def test_deadline_and_cancellation_cover_both_models() -> None:
    second = FakeRunner()
    models = ((FakeRunner(), FIRST), (second, SECOND))
    # Two lanes, so that the first model can run while the second is stopped at its gate.
    settings = ServerSettings(pivot="en", repetition_tokens=0, lanes=2, run_timeout_seconds=0)
    clock = Clock()
    async with several(*models, settings=settings, clock=clock) as running, running.client() as client:
        second.gate.clear()
        call = asyncio.create_task(client.translate(["kite"], source="fr", to="de"))
        await eventually(second.stepping.is_set)
        clock.ahead += 10 * PATIENCE_SECONDS
        second.gate.set()
        with pytest.raises(TimedOutError):
            await call
        second.gate.clear()
        second.stepping.clear()
        call = asyncio.create_task(client.translate(["boat"], source="fr", to="de"))
        await eventually(second.stepping.is_set)
        call.cancel()
        labels = {"grpc_type": "unary", "grpc_service": SERVICE, "grpc_method": "Translate", "grpc_code": "CANCELLED"}
        await eventually(lambda: running.value("grpc_server_handled_total", **labels) == 1)
        second.gate.set()
        ended = [{"model": "en-de", "reason": reason} for reason in ("deadline", "cancelled")]
        await eventually(lambda: all(running.value("dragoman_finished_total", **each) == 1 for each in ended))


async def test_a_full_queue_refuses_the_second_leg() -> None:
    second = FakeRunner()
    models = ((FakeRunner(), FIRST), (second, SECOND))
    settings = ServerSettings(pivot="en", repetition_tokens=0, lanes=2, max_rows=1, queue_sequences=1)
    async with several(*models, settings=settings) as running, running.client() as client:
        second.gate.clear()
        calls = [asyncio.create_task(client.translate(["kite"], source="en", to="de"))]
        await eventually(second.stepping.is_set)
        calls.append(asyncio.create_task(client.translate(["kite"], source="en", to="de")))
        await eventually(lambda: running.value("dragoman_queue_sequences", model="en-de") == 1)
        with pytest.raises(OverloadedError):
            await client.translate(["kite"], source="fr", to="de")
        assert running.value("dragoman_finished_total", model="fr-en", reason="end") == 1
        second.gate.set()
        await asyncio.gather(*calls)


async def test_a_broken_second_model_refuses_before_the_first_works() -> None:
    models = ((FakeRunner(), FIRST), (FakeRunner(), SECOND))
    async with several(*models, settings=THROUGH_ENGLISH) as running, running.client() as client:
        await asyncio.to_thread(running.server.models["en-de"].engine.stop)
        await eventually(lambda: running.value("dragoman_ready", model="en-de") == 0)
        with pytest.raises(UnavailableError, match="the engine has stopped"):
            await client.translate(["kite"], source="fr", to="de")
        assert running.value("dragoman_finished_total", model="fr-en", reason="end") == 0


async def test_a_pivot_unknown_to_every_model_is_refused_at_start() -> None:
    with pytest.raises(StartupError, match=r"^pivot is 'xx', a language of no model; the languages are de, en, fr$"):
        Server(loopback(ServerSettings(pivot="xx")), FIRST, SECOND)


async def test_command_line_and_call_log_show_the_pivot(caplog: pytest.LogCaptureFixture) -> None:
    models = ((FakeRunner(), FIRST), (FakeRunner(), SECOND))
    caplog.set_level(logging.INFO, "dragoman.calls")
    async with several(*models, settings=THROUGH_ENGLISH) as running:
        command = ("translate", "--from", "fr", "--to", "de", "--max-output-tokens", "1")
        translated = await dragoman(running, *command, stdin="kite\nred kite\n")
        info = await dragoman(running, "info")
    assert (translated.exit_code, translated.stdout) == (0, "kite\nred\n")
    assert translated.stderr.splitlines() == [
        "through en: by fr-en, then by en-de",
        "line 1: the translation was stopped",
        "line 2: the translation was stopped",
    ]
    assert re.search("pivot +en, for pairs", info.stdout)
    fields = next(record.fields for record in caplog.records if hasattr(record, "fields"))
    assert (fields["pivot"], fields["pivot_model"], fields["model"]) == ("en", "fr-en", "en-de")
