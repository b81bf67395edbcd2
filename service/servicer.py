"""The methods of TranslationService: from messages to a Translator, and back."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import grpc

from dragoman.service.errors import InvalidRequestError, UnknownModelError
from dragoman.service.process import own_version, resident_memory_bytes
from dragoman.service.results import EmbedResult, ModelInfo, ServerInfo, ServerLimits
from dragoman.service.translator import Translator
from dragoman.service.wire import embed_response, info_response, pooling_from, translate_response
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["TranslationService"]
SERVICE: str = _DESCRIPTOR.full_name
METHODS: tuple[str, ...] = tuple(method.name for method in _DESCRIPTOR.methods)

REQUEST_ID_CHARACTERS = 128

MANY_NUMBERS = 65536
"""From here on, vectors are put into a message on another thread."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class ServedModel:
    """A model that answers."""

    info: ModelInfo
    translator: Translator


class TranslationService(rpc.TranslationServiceServicer):
    """Answers with the models that were added; raises ServiceError where it cannot."""

    def __init__(self, limits: ServerLimits) -> None:
        """`limits` are what GetInfo tells; others keep them."""
        self._limits = limits
        self._models: dict[str, ServedModel] = {}
        self._runtime_version = ""

    def add(self, model: ServedModel, runtime_version: str) -> None:
        """Serve `model` under its name from now on."""
        self._models[model.info.name] = model
        self._runtime_version = runtime_version

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, context: Context
    ) -> pb.TranslateResponse:
        """See the proto."""
        _check_request_id(request.request_id)
        result = await self._translator(request.model).translate(
            request.texts,
            source_language=request.source_language,
            target_language=request.target_language,
            max_output_tokens=request.max_output_tokens,
            truncate=request.truncate,
            scores=not request.omit_scores,
            seconds_left=_seconds_left(context),
        )
        return translate_response(replace(result, request_id=request.request_id))

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:  # noqa: N802
        """See the proto."""
        _check_request_id(request.request_id)
        try:
            pooling = pooling_from(request.pooling)
        except ValueError as error:
            raise InvalidRequestError("pooling", str(error)) from error
        result = await self._translator(request.model).embed(
            request.texts,
            source_language=request.source_language,
            pooling=pooling,
            normalize=request.normalize if request.HasField("normalize") else None,
            truncate=request.truncate,
            seconds_left=_seconds_left(context),
        )
        return await _embed_message(replace(result, request_id=request.request_id))

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        """See the proto."""
        models = tuple(model.info for model in self._models.values())
        memory = resident_memory_bytes()
        return info_response(ServerInfo(models, own_version(), self._runtime_version, memory, self._limits))

    def _translator(self, name: str) -> Translator:
        if not name and len(self._models) == 1:
            return next(iter(self._models.values())).translator
        model = self._models.get(name)
        if model is None:
            raise UnknownModelError(name, sorted(self._models))
        return model.translator


async def _embed_message(result: EmbedResult) -> pb.EmbedResponse:
    if sum(each.values.size for each in result.embeddings) < MANY_NUMBERS:
        return embed_response(result)
    return await asyncio.to_thread(embed_response, result)


def _check_request_id(request_id: str) -> None:
    if len(request_id) > REQUEST_ID_CHARACTERS:
        fault = f"must have at most {REQUEST_ID_CHARACTERS} characters, has {len(request_id)}"
        raise InvalidRequestError("request_id", fault)


def _seconds_left(context: Context) -> float | None:
    left: float | None = context.time_remaining()
    return left
