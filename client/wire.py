"""Converts the values of `client.values` to messages of the proto and back."""

import numpy as np

from dragoman.client.values import (
    Embedding,
    EmbedResult,
    FinishReason,
    ModelInfo,
    ModelMemory,
    Pivot,
    Pooling,
    ProcessMemory,
    ServerInfo,
    ServerLimits,
    Timings,
    Token,
    TranslateResult,
    Translation,
)
from dragoman.v1 import translation_pb2 as pb

# UNKNOWN is missing: a server never sends it.
FINISH_REASONS = {
    FinishReason.END: pb.FINISH_REASON_END,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.REPETITION: pb.FINISH_REASON_REPETITION,
}

POOLINGS = {
    Pooling.MEAN: pb.POOLING_MEAN,
    Pooling.CLS: pb.POOLING_CLS,
    Pooling.MAX: pb.POOLING_MAX,
    Pooling.NONE: pb.POOLING_NONE,
}

_FINISH_REASONS_BACK = {number: reason for reason, number in FINISH_REASONS.items()}
_POOLINGS_BACK = {number: pooling for pooling, number in POOLINGS.items()}


def pooling_from(number: int) -> Pooling | None:
    """The pooling of a request; None leaves it to the model. Raises ValueError for an unknown number."""
    if number == pb.POOLING_UNSPECIFIED:
        return None
    pooling = _POOLINGS_BACK.get(pb.Pooling.ValueType(number))
    if pooling is None:
        raise ValueError(f"is {number}, which this server does not know")
    return pooling


def translate_response(result: TranslateResult) -> pb.TranslateResponse:
    """`result` as a message."""
    return pb.TranslateResponse(
        translations=[_translation_message(each) for each in result.translations],
        model=result.model,
        model_version=result.model_version,
        timings=_timings_message(result.timings),
        request_id=result.request_id,
        pivot=None if result.pivot is None else _pivot_message(result.pivot),
    )


def translate_result(message: pb.TranslateResponse) -> TranslateResult:
    """`message` as a value."""
    return TranslateResult(
        translations=tuple(map(_translation, message.translations)),
        model=message.model,
        model_version=message.model_version,
        timings=_timings(message.timings),
        request_id=message.request_id,
        pivot=_pivot(message.pivot) if message.HasField("pivot") else None,
    )


def embed_response(result: EmbedResult) -> pb.EmbedResponse:
    """`result` as a message."""
    return pb.EmbedResponse(
        embeddings=[
            pb.Embedding(
                values=each.values.ravel().tolist(),
                tokens=[pb.Token(id=t.id, start_byte=t.start_byte, end_byte=t.end_byte) for t in each.tokens],
                source_truncated=each.source_truncated,
                source_tokens=each.source_tokens,
            )
            for each in result.embeddings
        ],
        dimension=result.dimension,
        model=result.model,
        model_version=result.model_version,
        timings=_timings_message(result.timings),
        request_id=result.request_id,
    )


def embed_result(message: pb.EmbedResponse) -> EmbedResult:
    """`message` as a value."""
    return EmbedResult(
        embeddings=tuple(_embedding(each, message.dimension) for each in message.embeddings),
        dimension=message.dimension,
        model=message.model,
        model_version=message.model_version,
        timings=_timings(message.timings),
        request_id=message.request_id,
    )


def info_response(info: ServerInfo) -> pb.GetInfoResponse:
    """`info` as a message."""
    return pb.GetInfoResponse(
        models=[
            pb.ModelInfo(
                name=each.name,
                version=each.version,
                family=each.family,
                source_languages=each.source_languages,
                target_languages=each.target_languages,
                precision=each.precision,
                provider=each.provider,
                max_source_tokens=each.max_source_tokens,
                max_output_tokens=each.max_output_tokens,
                max_source_characters=each.max_source_characters,
                embedding_dimension=each.embedding_dimension,
                threads=each.threads,
                memory=_model_memory_message(each.memory),
            )
            for each in info.models
        ],
        server_version=info.server_version,
        runtime_version=info.runtime_version,
        resident_memory_bytes=info.resident_memory_bytes,
        limits=_limits_message(info.limits),
        pivot_language=info.pivot_language,
        memory=pb.ProcessMemory(
            libraries_bytes=info.memory.libraries,
            interpreter_bytes=info.memory.interpreter,
        ),
    )


def server_info(message: pb.GetInfoResponse) -> ServerInfo:
    """`message` as a value."""
    return ServerInfo(
        models=tuple(
            ModelInfo(
                name=each.name,
                version=each.version,
                family=each.family,
                source_languages=tuple(each.source_languages),
                target_languages=tuple(each.target_languages),
                precision=each.precision,
                provider=each.provider,
                max_source_tokens=each.max_source_tokens,
                max_output_tokens=each.max_output_tokens,
                max_source_characters=each.max_source_characters,
                embedding_dimension=each.embedding_dimension,
                threads=each.threads,
                memory=_model_memory(each.memory),
            )
            for each in message.models
        ),
        server_version=message.server_version,
        runtime_version=message.runtime_version,
        resident_memory_bytes=message.resident_memory_bytes,
        limits=_limits(message.limits),
        pivot_language=message.pivot_language,
        memory=ProcessMemory(
            libraries=message.memory.libraries_bytes,
            interpreter=message.memory.interpreter_bytes,
        ),
    )


def _model_memory_message(memory: ModelMemory) -> pb.ModelMemory:
    return pb.ModelMemory(
        weights_bytes=memory.weights,
        buffers_bytes=memory.buffers,
        working_bytes=memory.working,
        cache_reserved_bytes=memory.cache_reserved,
        cache_resident_bytes=memory.cache_resident,
        cache_used_bytes=memory.cache_used,
    )


def _model_memory(message: pb.ModelMemory) -> ModelMemory:
    return ModelMemory(
        weights=message.weights_bytes,
        buffers=message.buffers_bytes,
        working=message.working_bytes,
        cache_reserved=message.cache_reserved_bytes,
        cache_resident=message.cache_resident_bytes,
        cache_used=message.cache_used_bytes,
    )


def _limits_message(limits: ServerLimits) -> pb.Limits:
    return pb.Limits(
        max_message_bytes=limits.message_bytes,
        max_answer_bytes=limits.answer_bytes,
        max_texts=limits.texts,
        max_metadata_bytes=limits.metadata_bytes,
        max_connection_calls=limits.connection_calls,
        max_connection_age_seconds=limits.connection_age_seconds,
        max_connection_idle_seconds=limits.connection_idle_seconds,
        min_ping_seconds=limits.ping_seconds,
        max_call_seconds=limits.call_seconds,
    )


def _limits(message: pb.Limits) -> ServerLimits:
    return ServerLimits(
        message_bytes=message.max_message_bytes,
        answer_bytes=message.max_answer_bytes,
        texts=message.max_texts,
        metadata_bytes=message.max_metadata_bytes,
        connection_calls=message.max_connection_calls,
        connection_age_seconds=message.max_connection_age_seconds,
        connection_idle_seconds=message.max_connection_idle_seconds,
        ping_seconds=message.min_ping_seconds,
        call_seconds=message.max_call_seconds,
    )


def _translation_message(translation: Translation) -> pb.Translation:
    return pb.Translation(
        text=translation.text,
        finish_reason=FINISH_REASONS[translation.finish_reason],
        source_truncated=translation.source_truncated,
        source_tokens=translation.source_tokens,
        output_tokens=translation.output_tokens,
        score=translation.score,
    )


def _translation(message: pb.Translation) -> Translation:
    return Translation(
        text=message.text,
        finish_reason=_FINISH_REASONS_BACK.get(message.finish_reason, FinishReason.UNKNOWN),
        source_truncated=message.source_truncated,
        source_tokens=message.source_tokens,
        output_tokens=message.output_tokens,
        score=message.score if message.HasField("score") else None,
    )


def _pivot_message(pivot: Pivot) -> pb.Pivot:
    return pb.Pivot(
        language=pivot.language,
        model=pivot.model,
        model_version=pivot.model_version,
        translations=[_translation_message(each) for each in pivot.translations],
    )


def _pivot(message: pb.Pivot) -> Pivot:
    return Pivot(
        language=message.language,
        model=message.model,
        model_version=message.model_version,
        translations=tuple(map(_translation, message.translations)),
    )


def _embedding(message: pb.Embedding, dimension: int) -> Embedding:
    values = np.array(message.values, dtype=np.float32)
    return Embedding(
        values=values.reshape(-1, dimension) if message.tokens else values,
        tokens=tuple(Token(each.id, each.start_byte, each.end_byte) for each in message.tokens),
        source_truncated=message.source_truncated,
        source_tokens=message.source_tokens,
    )


def _timings_message(timings: Timings) -> pb.Timings:
    return pb.Timings(
        queue_seconds=timings.queue_seconds,
        tokenize_seconds=timings.tokenize_seconds,
        encode_seconds=timings.encode_seconds,
        decode_seconds=timings.decode_seconds,
    )


def _timings(message: pb.Timings) -> Timings:
    return Timings(
        queue_seconds=message.queue_seconds,
        tokenize_seconds=message.tokenize_seconds,
        encode_seconds=message.encode_seconds,
        decode_seconds=message.decode_seconds,
    )
