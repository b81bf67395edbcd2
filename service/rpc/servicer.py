"""The methods of TranslationService: convert messages, choose the model, and pass on the call."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from dragoman.client.values import EmbedResult, Pooling, ServerInfo, ServerLimits
from dragoman.client.wire import embed_response, info_response, pooling_from, translate_response
from dragoman.service.errors import InvalidRequestError
from dragoman.service.system.in_thread import run_in_thread
from dragoman.service.system.process import own_version
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.translation.options import EmbedOptions, TranslateOptions
from dragoman.service.translation.routing import embedding_model, route_translation
from dragoman.service.translation.served_model import ServedModel
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc

MAX_REQUEST_ID_CHARACTERS = 128

MAX_INLINE_NUMBERS = 65536
"""Answers with more numbers are converted on another thread."""

Context = grpc.aio.ServicerContext[Any, Any]


class TranslationService(rpc.TranslationServiceServicer):
    """Answers calls with the models loaded at the time; raises ServiceError where it cannot."""

    def __init__(
        self, models: Mapping[str, ServedModel], limits: ServerLimits, reporter: MemoryReporter, pivot: str = ""
    ) -> None:
        """`models` by name, in the order that GetInfo lists them; the caller may replace entries at any time.

        `limits` are reported by GetInfo; only the call time limit also bounds the deadlines passed on here. `pivot` is
        as in `service.translation.routing`.
        """
        self._models = models
        self._limits = limits
        self._reporter = reporter
        self._pivot = pivot

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, context: Context
    ) -> pb.TranslateResponse:
        """See the proto."""
        _check_request_id(request.request_id)
        options = TranslateOptions(
            source_language=request.source_language,
            target_language=request.target_language,
            max_output_tokens=request.max_output_tokens,
            truncate=request.truncate,
            scores=not request.omit_scores,
        )
        translator = route_translation(
            [*self._models.values()], request.model, options.source_language, options.target_language, self._pivot
        )
        result = await translator.translate(request.texts, options, self._seconds_left(context))
        return translate_response(replace(result, request_id=request.request_id))

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:  # noqa: N802
        """See the proto."""
        _check_request_id(request.request_id)
        options = EmbedOptions(
            source_language=request.source_language,
            pooling=_pooling(request.pooling),
            normalize=request.normalize if request.HasField("normalize") else None,
            truncate=request.truncate,
        )
        model = embedding_model([*self._models.values()], request.model, options.source_language)
        result = await model.embed(request.texts, options, self._seconds_left(context))
        return await _embed_message(replace(result, request_id=request.request_id))

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        """See the proto."""
        models = [*self._models.values()]
        runtime_version = models[0].runtime_version if models else ""
        report = await run_in_thread(partial(self._reporter.look, models))
        infos = tuple(replace(model.info, memory=held) for model, held in zip(models, report.models, strict=True))
        return info_response(
            ServerInfo(
                infos, own_version(), runtime_version, report.resident, self._limits, self._pivot, report.process
            )
        )

    def _seconds_left(self, context: Context) -> float:
        """Seconds until the caller's deadline or the server's own time limit, whichever comes first."""
        left: float | None = context.time_remaining()
        return self._limits.call_seconds if left is None else min(left, self._limits.call_seconds)


def _pooling(number: int) -> Pooling | None:
    """None where the request leaves it to the model. Raises InvalidRequestError for an unknown number."""
    try:
        return pooling_from(number)
    except ValueError as error:
        raise InvalidRequestError("pooling", str(error)) from error


async def _embed_message(result: EmbedResult) -> pb.EmbedResponse:
    if sum(each.values.size for each in result.embeddings) < MAX_INLINE_NUMBERS:
        return embed_response(result)
    return await asyncio.to_thread(embed_response, result)


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_CHARACTERS:
        fault = f"must have at most {MAX_REQUEST_ID_CHARACTERS} characters, has {len(request_id)}"
        raise InvalidRequestError("request_id", fault)
