"""The methods of TranslationService: from messages to a Translator, and back."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from dragoman.client.values import EmbedResult, ServerInfo, ServerLimits
from dragoman.client.wire import embed_response, info_response, pooling_from, translate_response
from dragoman.service.errors import InvalidRequestError
from dragoman.service.system.in_thread import run_in_thread
from dragoman.service.system.process import own_version
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.translation.pivot import route, translate_along
from dragoman.service.translation.routing import for_embedding
from dragoman.service.translation.served_model import ServedModel
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc

REQUEST_ID_CHARACTERS = 128

MAX_INLINE_NUMBERS = 65536
"""From here on, vectors are put into a message on another thread."""

Context = grpc.aio.ServicerContext[Any, Any]


class TranslationService(rpc.TranslationServiceServicer):
    """Answers with the models that there are when a call comes; raises ServiceError where it cannot."""

    def __init__(
        self, models: Mapping[str, ServedModel], limits: ServerLimits, account: MemoryReporter, pivot: str = ""
    ) -> None:
        """`models` by their names, in the order in which they are told; others may be put into it at any time.

        `limits` are what GetInfo tells; others keep them, but for that on a call's time: what cannot be done in it is
        refused here, and the interceptor ends what is not. `account` knows where memory goes; `pivot` is as in
        `service.translation.pivot`.
        """
        self._models = models
        self._limits = limits
        self._account = account
        self._pivot = pivot

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, context: Context
    ) -> pb.TranslateResponse:
        """See the proto."""
        _check_request_id(request.request_id)
        source, target = request.source_language, request.target_language
        models = route([*self._models.values()], request.model, source, target, self._pivot)
        result = await translate_along(
            models,
            self._pivot,
            request.texts,
            source_language=source,
            target_language=target,
            max_output_tokens=request.max_output_tokens,
            truncate=request.truncate,
            scores=not request.omit_scores,
            seconds_left=self._seconds_left(context),
        )
        return translate_response(replace(result, request_id=request.request_id))

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:  # noqa: N802
        """See the proto."""
        _check_request_id(request.request_id)
        try:
            pooling = pooling_from(request.pooling)
        except ValueError as error:
            raise InvalidRequestError("pooling", str(error)) from error
        source = request.source_language
        model = for_embedding([*self._models.values()], request.model, source)
        with model.lifecycle:
            result = await model.translator.embed(
                request.texts,
                source_language=source,
                pooling=pooling,
                normalize=request.normalize if request.HasField("normalize") else None,
                truncate=request.truncate,
                seconds_left=self._seconds_left(context),
            )
        return await _embed_message(replace(result, request_id=request.request_id))

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        """See the proto."""
        models = [*self._models.values()]
        runtime_version = models[0].runtime_version if models else ""
        look = await run_in_thread(partial(self._account.look, models))
        infos = tuple(replace(model.info, memory=held) for model, held in zip(models, look.models, strict=True))
        return info_response(
            ServerInfo(infos, own_version(), runtime_version, look.resident, self._limits, self._pivot, look.process)
        )

    def _seconds_left(self, context: Context) -> float:
        left: float | None = context.time_remaining()
        return self._limits.call_seconds if left is None else min(left, self._limits.call_seconds)


async def _embed_message(result: EmbedResult) -> pb.EmbedResponse:
    if sum(each.values.size for each in result.embeddings) < MAX_INLINE_NUMBERS:
        return embed_response(result)
    return await asyncio.to_thread(embed_response, result)


def _check_request_id(request_id: str) -> None:
    if len(request_id) > REQUEST_ID_CHARACTERS:
        fault = f"must have at most {REQUEST_ID_CHARACTERS} characters, has {len(request_id)}"
        raise InvalidRequestError("request_id", fault)
