"""Routes through a pivot language, and calls that take them."""

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.service.errors import InvalidRequestError, NoSuchPairError, NotServingError, UnknownModelError
from dragoman.service.lifecycle import State
from dragoman.service.translation.options import TranslateOptions
from dragoman.service.translation.pivot import PivotTranslator
from dragoman.service.translation.routing import TextTranslator, route_translation
from dragoman.service.translation.served_model import ServedModel
from tests.support.fake_runner import FakeRunner
from tests.support.harness import eventually
from tests.unit.service.translation.served import served_model

EN_FR = served_model("en-fr", "en", "fr")
EN_DE = served_model("en-de", "en", "de")
FR_EN = served_model("fr-en", "fr", "en")
MANY_EN = served_model("many-en", "it es", "en")
EMBEDS = served_model("embeds", "de", "")
ALL = [EN_FR, EN_DE, FR_EN, MANY_EN, EMBEDS]


def models_of(translator: TextTranslator) -> list[str]:
    """Names of the models on the route, in order."""
    if isinstance(translator, PivotTranslator):
        return [translator.first.info.name, translator.second.info.name]
    assert isinstance(translator, ServedModel)
    return [translator.info.name]


@pytest.mark.parametrize(
    ("source", "target", "models"),
    [
        ("en", "de", ["en-de"]),
        ("fr", "de", ["fr-en", "en-de"]),
        ("fr_CA", "de-AT", ["fr-en", "en-de"]),
        ("es", "fr", ["many-en", "en-fr"]),
    ],
)
def test_two_models_cover_a_pair_that_none_covers_alone(source: str, target: str, models: list[str]) -> None:
    assert models_of(route_translation(ALL, "", source, target, "en")) == models


@pytest.mark.parametrize(
    ("source", "target", "pivot"),
    [
        ("fr", "de", ""),
        ("fr", "de", "it"),
        ("fr", "xx", "en"),
        ("xx", "de", "en"),
        ("", "xx", "en"),
        ("de", "fr", "en"),
        ("en", "en", "en"),
        ("fr", "fr", "en"),
    ],
)
def test_other_pairs_are_refused_as_without_a_pivot(source: str, target: str, pivot: str) -> None:
    with pytest.raises(NoSuchPairError, match="is not offered"):
        route_translation(ALL, "", source, target, pivot)


def test_an_omitted_language_is_not_guessed_for_two_models() -> None:
    models = [FR_EN, EN_DE, served_model("en-es", "en", "es")]
    assert models_of(route_translation(models, "", "", "de", "en")) == ["en-de"]
    with pytest.raises(NoSuchPairError):
        route_translation([served_model("fr-many", "fr", "en it"), EN_DE], "", "fr", "", "en")


def test_source_and_target_must_differ_from_the_pivot() -> None:
    rewrites = served_model("rewrites", "en", "en")
    with pytest.raises(NoSuchPairError):
        route_translation([rewrites, FR_EN], "", "en", "de", "en")
    with pytest.raises(NoSuchPairError):
        route_translation([rewrites, EN_DE], "", "xx", "en", "en")


def test_a_named_model_is_used_alone() -> None:
    assert models_of(route_translation(ALL, "en-de", "fr", "de", "en")) == ["en-de"]
    with pytest.raises(UnknownModelError):
        route_translation(ALL, "nope", "fr", "de", "en")


def test_several_models_for_one_leg_are_listed() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        route_translation([*ALL, served_model("fr-en-big", "fr", "en")], "", "fr", "de", "en")
    assert str(caught.value) == (
        "target_language 'de' from 'fr' is offered only through 'en', by several models: fr-en, fr-en-big"
    )


def test_a_model_of_undetermined_languages_is_used_alone() -> None:
    unknown = served_model("unknown", UNDETERMINED, UNDETERMINED)
    assert models_of(route_translation([*ALL, unknown], "", "fr", "de", "en")) == ["unknown"]


# --- calls

OPTIONS = TranslateOptions(source_language="fr", target_language="de")


@contextmanager
def two_models(first: FakeRunner, second: FakeRunner) -> Iterator[PivotTranslator]:
    """Through English, on running engines."""
    models = served_model("fr-en", "fr", "en", first), served_model("en-de", "en", "de", second)
    for model in models:
        model.engine.start()
    try:
        yield PivotTranslator(*models, "en")
    finally:
        for runner in (first, second):
            runner.gate.set()
        for model in models:
            model.engine.stop()


async def test_no_work_begins_unless_both_models_serve() -> None:
    first = FakeRunner()
    with two_models(first, FakeRunner()) as pivoting:
        pivoting.second.lifecycle.move(State.HANGING)
        with pytest.raises(NotServingError, match="the model does not answer"):
            await pivoting.translate(["kite"], OPTIONS)
        async with asyncio.timeout(1):
            await pivoting.first.lifecycle.idle()
    assert first.batches == []


async def test_no_work_begins_with_a_bad_output_limit() -> None:
    first = FakeRunner()
    negative = dataclasses.replace(OPTIONS, max_output_tokens=-1)
    with (
        two_models(first, FakeRunner()) as pivoting,
        pytest.raises(InvalidRequestError, match="max_output_tokens must be at least 0, is -1"),
    ):
        await pivoting.translate(["kite"], negative)
    assert first.batches == []


async def test_a_call_runs_in_both_lifecycles_from_beginning_to_end() -> None:
    first = FakeRunner()
    with two_models(first, FakeRunner()) as pivoting:
        first.gate.clear()
        call = asyncio.create_task(pivoting.translate(["red kite"], OPTIONS))
        await eventually(first.stepping.is_set)
        for model in (pivoting.first, pivoting.second):
            model.lifecycle.move(State.STOPPING)
        retired = asyncio.create_task(pivoting.second.lifecycle.idle())
        await asyncio.sleep(0)
        assert not retired.done()
        first.gate.set()
        assert (await call).texts == ("red kite",)
        async with asyncio.timeout(1):
            await retired
