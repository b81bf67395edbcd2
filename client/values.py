"""What a call gives: the values that the server fills and the client hands out."""

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
    """A reason that is newer than this client."""


class Pooling(Enum):
    """How token states become a vector. The end token is a token like any other; padding never counts."""

    MEAN = "mean"
    """The mean over all tokens."""
    CLS = "cls"
    """The state of the first token."""
    MAX = "max"
    """The largest value of each dimension over all tokens."""
    NONE = "none"
    """No pooling: one vector a token."""


@dataclass(frozen=True)
class Timings:
    """Where the time of a call went, in seconds; of several texts the slowest, phase by phase."""

    queue_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    """Zero for embeddings."""


@dataclass(frozen=True)
class Translation:
    """One text's translation."""

    text: str
    finish_reason: FinishReason
    source_truncated: bool
    """The text was longer than the model's limit, and only its beginning was translated."""
    source_tokens: int
    """Tokens that the model read, the end token counted; 0 for a blank text."""
    output_tokens: int
    """Tokens that the model wrote, the end token counted; 0 for a blank text."""
    score: float | None
    """Mean natural log-probability of the chosen tokens, the end token included unless it was forced at the limit; None
    where nothing was chosen, as for a blank text, and unasked."""


@dataclass(frozen=True)
class Token:
    """A token, and the bytes of the text's UTF-8 form that it stands for: from start_byte up to end_byte."""

    id: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, eq=False)
class Embedding:
    """One text's vector, or its vectors."""

    values: NDArray[np.float32]
    """[dimension]; without pooling [tokens, dimension]."""
    tokens: tuple[Token, ...]
    """Without pooling the tokens in order, the end token last; else none."""
    source_truncated: bool
    """The text was longer than the model's limit, and only its beginning was embedded."""
    source_tokens: int
    """Tokens that the model read, the end token counted."""


@dataclass(frozen=True)
class Pivot:
    """Half the way of a call that went through a third language, by two models."""

    language: str
    """In between; BCP-47."""
    model: str
    """That translated into it."""
    model_version: str
    translations: tuple[Translation, ...]
    """Into that language: one a text, in the order of the texts."""


@dataclass(frozen=True)
class TranslateResult:
    """The answer to a call of Translate."""

    translations: tuple[Translation, ...]
    """One a text, in the order of the texts."""
    model: str
    model_version: str
    timings: Timings
    request_id: str = ""
    """As in the request."""
    pivot: Pivot | None = None
    """What lay in between, where two models were needed; then `model` is the second one, source tokens are those of the
    first, an end is one of both, and a text was truncated where either cut it. A score is the second one's alone."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The translations alone, in the order of the texts."""
        return tuple(translation.text for translation in self.translations)


@dataclass(frozen=True)
class EmbedResult:
    """The answer to a call of Embed."""

    embeddings: tuple[Embedding, ...]
    """One a text, in the order of the texts."""
    dimension: int
    """Numbers a vector."""
    model: str
    model_version: str
    timings: Timings
    request_id: str = ""
    """As in the request."""


@dataclass(frozen=True)
class ModelMemory:
    """What one model holds of the server's memory, in bytes."""

    weights: int = 0
    """Of its file of weights, what is resident."""
    buffers: int = 0
    """What loading it took besides: graphs, weights in the runtime's own layout, the tokenizer."""
    working: int = 0
    """What runs have taken since memory was last given back; the next runs use it again."""
    cache_reserved: int = 0
    """For the rows of the batch, touched or not."""
    cache_resident: int = 0
    """The part of it that was touched: it alone takes memory."""
    cache_used: int = 0
    """The part of it that holds tokens of running texts."""

    @property
    def resident(self) -> int:
        """All that takes memory."""
        return self.weights + self.buffers + self.working + self.cache_resident


@dataclass(frozen=True)
class ProcessMemory:
    """What a server holds beside its models, in bytes."""

    libraries: int = 0
    """Programs and libraries, as far as they are resident."""
    interpreter: int = 0
    """What Python, gRPC and the runtime had allocated before the first model was loaded."""

    @property
    def resident(self) -> int:
        """All of it."""
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
    """BCP-47; none where the model only embeds."""
    precision: str
    provider: str
    """The execution provider really in use, such as CPUExecutionProvider."""
    max_source_tokens: int
    """The end token counted."""
    max_output_tokens: int
    """The end token counted; 0 where the model only embeds."""
    max_source_characters: int
    embedding_dimension: int
    """Numbers a vector."""
    threads: int
    memory: ModelMemory = ModelMemory()


@dataclass(frozen=True)
class ServerLimits:
    """What a server bounds, whatever the model."""

    message_bytes: int
    """Of a request."""
    answer_bytes: int
    """Of the vectors of one answer."""
    texts: int
    """Of one call."""
    metadata_bytes: int
    """Of one call."""
    connection_calls: int
    """At once on one connection; further ones wait at the caller."""
    connection_age_seconds: int
    """After about so long a connection is closed in order, and the caller opens another."""
    connection_idle_seconds: int
    """After so long without a call as well."""
    ping_seconds: int
    """Pings that come faster close the connection."""
    call_seconds: int
    """Of one call, whatever its own deadline."""


@dataclass(frozen=True)
class ServerInfo:
    """A server and what it has loaded."""

    models: tuple[ModelInfo, ...]
    server_version: str
    runtime_version: str
    """ONNX Runtime's version."""
    resident_memory_bytes: int
    """Memory of the server process that is resident now."""
    limits: ServerLimits
    pivot_language: str = ""
    """Through which calls go where no model has their languages and two have them together; "" for none."""
    memory: ProcessMemory = ProcessMemory()
    """What it holds beside the models."""

    @property
    def explained_memory_bytes(self) -> int:
        """All parts that are told, each measured by itself: about `resident_memory_bytes`."""
        return self.memory.resident + sum(model.memory.resident for model in self.models)
