import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.service import errors
from dragoman.service.errors import (
    CallTimeLimitError,
    DeadlineExceededError,
    DeadlineForecast,
    DeadlineUnreachableError,
    InvalidRequestError,
    ModelFailedError,
    ModelHungError,
    NoMemoryError,
    NoSuchPairError,
    NotServingError,
    OverloadedError,
    RateLimitedError,
    ServiceError,
    TooLongError,
    UnauthenticatedError,
    UnknownLanguageError,
    UnknownModelError,
)
from dragoman.service.rpc.status import CODES, status_of
from dragoman.service.telemetry.metrics import REFUSALS
from dragoman.v1.names import DETAILS_KEY, PUSHBACK_KEY

ONE_OF_EACH: list[tuple[ServiceError, grpc.StatusCode]] = [
    (InvalidRequestError("texts", "must hold at least one text, is empty"), grpc.StatusCode.INVALID_ARGUMENT),
    (TooLongError(3, 25, 24, "tokens"), grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownLanguageError("target_language", "xx", ("fr",)), grpc.StatusCode.INVALID_ARGUMENT),
    (NoSuchPairError("en", "xx", ("en-fr (en to fr)",)), grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownModelError("nope", ("en-fr",)), grpc.StatusCode.NOT_FOUND),
    (OverloadedError("the queue holds 3 of 3 sequences", 1.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnauthenticatedError("a bearer token is required"), grpc.StatusCode.UNAUTHENTICATED),
    (RateLimitedError("this token is limited to 3 calls per second", 0.25), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineUnreachableError(DeadlineForecast(1.26, 1.0)), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NoMemoryError(2), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineExceededError(), grpc.StatusCode.DEADLINE_EXCEEDED),
    (CallTimeLimitError(300), grpc.StatusCode.DEADLINE_EXCEEDED),
    (NotServingError("the server is starting"), grpc.StatusCode.UNAVAILABLE),
    (ModelHungError("the model does not answer"), grpc.StatusCode.UNAVAILABLE),
    (ModelFailedError(0, "the runtime raised an error"), grpc.StatusCode.INTERNAL),
]


def every_error() -> set[type[ServiceError]]:
    return {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ServiceError) and kind is not ServiceError
    }


def details(error: ServiceError) -> status_pb2.Status:
    status = status_pb2.Status()
    status.ParseFromString(dict(status_of(error).metadata)[DETAILS_KEY])
    return status


@pytest.mark.parametrize(("error", "code"), ONE_OF_EACH, ids=lambda each: type(each).__name__)
def test_every_error_has_its_status(error: ServiceError, code: grpc.StatusCode) -> None:
    status = status_of(error)
    assert status.code is code
    assert status.message == str(error)
    assert status.message.isascii()
    assert len(status.message.splitlines()) == 1


def test_every_error_is_listed_above() -> None:
    assert {type(error) for error, _ in ONE_OF_EACH} == every_error()
    assert set(CODES) <= every_error()


def test_the_docstring_draws_the_class_tree() -> None:
    assert errors.__doc__
    drawn = [line.partition("── ") for line in errors.__doc__.splitlines() if "── " in line]
    depths = {after.split()[0]: len(before) // 4 for before, _, after in drawn}
    assert depths == {kind.__name__: kind.__mro__.index(ServiceError) for kind in every_error()}


def test_refusals_have_reasons_known_to_the_metric() -> None:
    assert {kind.refusal for kind in every_error()} <= {None, *REFUSALS}
    assert {error.refusal for error, _ in ONE_OF_EACH} == {None, *REFUSALS}


def test_a_missed_deadline_is_a_refusal_only_before_work_began() -> None:
    assert DeadlineExceededError().refusal is None
    assert DeadlineExceededError(work_begun=False).refusal == "deadline"
    assert CallTimeLimitError(300).refusal is None


@pytest.mark.parametrize(
    ("late_seconds", "shown", "retry"), [(1.2, "1.2", "1.2"), (0.26, "0.3", "0.3"), (0.01, "0.0", "0.1")]
)
def test_an_unreachable_deadline_says_by_how_much_it_is_missed(late_seconds: float, shown: str, retry: str) -> None:
    error = DeadlineUnreachableError(DeadlineForecast(late_seconds, 0.0))
    assert str(error).startswith(f"queue too long: would miss the deadline by about {shown} s (forecast ")
    assert str(error).endswith(f" s); retry in {retry} s")
    assert error.retry_after_seconds == float(retry)


def test_a_refusal_on_arrival_gives_the_numbers_of_its_forecast() -> None:
    assert str(DeadlineUnreachableError(DeadlineForecast(61.23, 59.0, 2.95, 4123, 67.6))) == (
        "queue too long: would miss the deadline by about 2.2 s "
        "(4100 tokens wait at 68 tokens/s, forecast 61 s, margin 3 s); retry in 2.3 s"
    )


def test_an_invalid_request_names_its_field() -> None:
    request = error_details_pb2.BadRequest()
    assert details(TooLongError(3, 25, 24, "tokens")).details[0].Unpack(request)
    (violation,) = request.field_violations
    assert violation.field == "texts[3]"
    assert violation.description == "has 25 tokens, the limit is 24; shorten it or set truncate"


def test_an_unknown_model_lists_the_models() -> None:
    assert str(UnknownModelError("nope", ("a", "b"))) == "model 'nope' is not known; this server has a, b"


def test_a_full_queue_gives_a_retry_delay() -> None:
    error = OverloadedError("full", 1.5)
    retry = error_details_pb2.RetryInfo()
    assert details(error).details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert dict(status_of(error).metadata)[PUSHBACK_KEY] == "1500"


@pytest.mark.parametrize("name", ["\x00\x1b[31m\n", "é" * 500, "x" * 10**6, "'\"\\", "\U0001f600"])
def test_names_from_the_caller_are_cut_and_escaped(name: str) -> None:
    for message in (str(UnknownLanguageError("target_language", name, ("fr",))), str(UnknownModelError(name, ("m",)))):
        assert message.isascii()
        assert message.isprintable()
        assert len(message) < 500


def test_a_long_list_of_names_is_cut() -> None:
    message = str(UnknownLanguageError("target_language", "xx", tuple(f"l{number}" for number in range(200))))
    assert message.endswith("l29 and 170 more")
