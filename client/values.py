"""Results of the calls: filled by the server, returned by the client."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class FinishReason(Enum):
    """Why an output ended."""

    END = "end"
    """The model chose an end token, or the text was blank."""
    LENGTH = "length"
    """The limit of output tokens was reached first; the translation may be incomplete."""
    REPETITION = "repetition"
    """The model fell into a loop and was stopped."""
    UNKNOWN = "unknown"
    """A reason that this version of the client does not know."""


class Pooling(Enum):
    """How token states are combined into a vector. The end token counts like any other; padding never counts."""

    MEAN = "mean"
    """The mean over all tokens."""
    CLS = "cls"
    """The state of the first token."""
    MAX = "max"
    """The maximum of each dimension over all tokens."""
    NONE = "none"
    """No pooling: one vector per token."""


@dataclass(frozen=True)
class Timings:
    """Seconds spent in each phase of a call; for several texts, the slowest in each phase."""

    queue_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    """Zero for embeddings."""


@dataclass(frozen=True)
class Translation:
    """The translation of one text."""

    text: str
    finish_reason: FinishReason
    source_truncated: bool
    """The text was longer than the model's limit, and only its beginning was translated."""
    source_tokens: int
    """Number of tokens read by the model, including the end token; 0 for a blank text."""
    output_tokens: int
    """Number of tokens written by the model, including the end token; 0 for a blank text."""
    score: float | None
    """Mean natural log-probability of the chosen tokens, including the end token unless the limit forced it. None if no
    token was chosen, as for a blank text, or if the call omits scores."""


@dataclass(frozen=True)
class Token:
    """A token and its place in the text: the UTF-8 bytes from start_byte up to but not including end_byte."""

    id: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, eq=False)
class Embedding:
    """The vector of one text, or the vectors of its tokens."""

    values: NDArray[np.float32]
    """Shape [dimension]; without pooling, [tokens, dimension]."""
    tokens: tuple[Token, ...]
    """The tokens in order, the end token last. Empty with pooling."""
    source_truncated: bool
    """The text was longer than the model's limit, and only its beginning was embedded."""
    source_tokens: int
    """Number of tokens read by the model, including the end token."""


@dataclass(frozen=True)
class Pivot:
    """The first leg of a pivot translation: from the source language to the pivot language."""

    language: str
    """The pivot language; BCP-47."""
    model: str
    """Name of the model that translated into the pivot language."""
    model_version: str
    translations: tuple[Translation, ...]
    """Translations into the pivot language, in the order of the texts."""


@dataclass(frozen=True)
class TranslateResult:
    """The result of a Translate call."""

    translations: tuple[Translation, ...]
    """In the order of the texts."""
    model: str
    model_version: str
    timings: Timings
    request_id: str = ""
    """Copy of the request's."""
    pivot: Pivot | None = None
    """Set if two models were needed. Then `model`, scores and output tokens are the second model's, source tokens the
    first model's, and `timings` sums both. A text counts as truncated if either model truncated it, and its finish
    reason is END only if both outputs ended."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The translated texts, in the order of the texts."""
        return tuple(translation.text for translation in self.translations)


@dataclass(frozen=True)
class EmbedResult:
    """The result of an Embed call."""

    embeddings: tuple[Embedding, ...]
    """In the order of the texts."""
    dimension: int
    """Length of a vector."""
    model: str
    model_version: str
    timings: Timings
    request_id: str = ""
    """Copy of the request's."""


@dataclass(frozen=True)
class ModelMemory:
    """Memory of one model in the server, in bytes."""

    weights: int = 0
    """Resident part of the weights file."""
    buffers: int = 0
    """Other memory allocated by loading: graphs, weights in the runtime's own layout, the tokenizer."""
    working: int = 0
    """Memory allocated by runs since memory was last released; the next runs reuse it."""
    cache_reserved: int = 0
    """Cache reserved for the rows of the batch, whether or not it was touched."""
    cache_resident: int = 0
    """Part of the cache that was touched; the rest takes no memory."""
    cache_used: int = 0
    """Part of the cache that holds tokens of running texts."""

    @property
    def resident(self) -> int:
        """Sum of all resident parts."""
        return self.weights + self.buffers + self.working + self.cache_resident


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of a server apart from its models, in bytes."""

    libraries: int = 0
    """Resident part of programs and libraries."""
    interpreter: int = 0
    """Memory allocated by Python, gRPC and the runtime before the first model was loaded."""

    @property
    def resident(self) -> int:
        """Sum of all parts."""
        return self.libraries + self.interpreter


@dataclass(frozen=True)
class ModelInfo:
    """One loaded model."""

    name: str
    version: str
    family: str
    source_languages: tuple[str, ...]
    """BCP-47."""
    target_languages: tuple[str, ...]
    """BCP-47; empty if the model only embeds."""
    precision: str
    provider: str
    """Execution provider in use, such as CPUExecutionProvider."""
    max_source_tokens: int
    """Includes the end token."""
    max_output_tokens: int
    """Includes the end token; 0 if the model only embeds."""
    max_source_characters: int
    embedding_dimension: int
    """Length of a vector."""
    threads: int
    memory: ModelMemory = ModelMemory()


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server, independent of the model."""

    message_bytes: int
    """Maximum size of a request."""
    answer_bytes: int
    """Maximum size of the vectors in one response."""
    texts: int
    """Maximum number of texts in one call."""
    metadata_bytes: int
    """Maximum size of the metadata of one call."""
    connection_calls: int
    """Maximum number of concurrent calls on one connection; further calls wait in the client."""
    connection_age_seconds: int
    """Approximate age at which a connection is closed gracefully; the client opens another."""
    connection_idle_seconds: int
    """Idle time after which a connection is closed."""
    ping_seconds: int
    """Minimum interval of pings; faster pings close the connection."""
    call_seconds: int
    """Time limit of one call, regardless of its deadline."""


@dataclass(frozen=True)
class ServerInfo:
    """A server and its models."""

    models: tuple[ModelInfo, ...]
    server_version: str
    runtime_version: str
    """Version of ONNX Runtime."""
    resident_memory_bytes: int
    """Resident memory of the server process."""
    limits: ServerLimits
    pivot_language: str = ""
    """Pivot language for pairs that only two models together cover; empty if there is none."""
    memory: ProcessMemory = ProcessMemory()
    """Memory apart from the models."""

    @property
    def explained_memory_bytes(self) -> int:
        """Sum of all reported parts, each measured separately: about `resident_memory_bytes`."""
        return self.memory.resident + sum(model.memory.resident for model in self.models)
