"""Server settings: each field is one option of `dragoman serve` and one DRAGOMAN_... environment variable."""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dragoman.bundle.cpus import allowed_cpus
from dragoman.service.engine.providers import CudaOptions
from dragoman.service.engine.repetition import Repetition
from dragoman.service.engine.scheduler import BatchLimits

PREFIX = "DRAGOMAN_"
"""Prefix of the environment variables."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051
MAX_PORT = 65535
MAX_INT32 = 2**31 - 1

FAULTS = {
    "greater_than_equal": "must be at least {ge}, is {input}",
    "less_than_equal": "must be at most {le}, is {input}",
    "literal_error": "must be {expected}, is {input!r}",
    "int_parsing": "must be a whole number, is {input!r}",
    "float_parsing": "must be a number, is {input!r}",
    "bool_parsing": "must be true or false, is {input!r}",
    "value_error": "{error}",
}
"""Messages by pydantic's error type; its own read less well behind the name of an option or a variable."""

Port = Annotated[int, Field(ge=0, le=MAX_PORT)]
NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
PositiveInt32 = Annotated[int, Field(ge=1, le=MAX_INT32)]
Bytes = Annotated[int, Field(ge=1024, le=MAX_INT32)]
# gRPC takes these in milliseconds, as a 32-bit number.
Seconds = Annotated[int, Field(ge=1, le=2**31 // 1000 - 1)]


class ServerSettings(BaseSettings):
    """How a server runs. Arguments take precedence over environment variables, and these over the defaults.

    Raises ValidationError, a ValueError, for a value outside its bounds; `fault_line` puts it into one line.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, use_attribute_docstrings=True
    )

    host: str = DEFAULT_HOST
    """Address to listen on for gRPC and, unless --metrics-host is set, for metrics."""
    port: Port = DEFAULT_PORT
    """Port for gRPC; 0: any free port."""
    metrics_host: str = ""
    """Address to listen on for /metrics, /healthz and /readyz. Default: the same as --host."""
    metrics_port: Port = 9464
    """Port for /metrics, /healthz and /readyz; 0: any free port."""
    provider: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run the models on. auto: CUDA if available, otherwise the CPU."""
    cuda_device: Annotated[int, Field(ge=0, le=1024)] = 0
    """Index of the GPU to run the models on."""
    cuda_memory_limit_bytes: NonNegative = 0
    """GPU memory limit of ONNX Runtime for each graph of a model; 0: no limit."""
    cuda_arena: Literal["exact", "double"] = "exact"
    """How the GPU memory arena grows. exact: by the size of each request; double: by powers of two."""
    cudnn_search: Literal["heuristic", "exhaustive", "default"] = "heuristic"
    """How cuDNN selects convolution algorithms."""
    cuda_graphs: bool = False
    """Capture GPU kernel launches as CUDA graphs and replay them."""
    model_weights: str = ""
    """Relative shares of the models in the memory budget and, while several are busy, in the processors:
    NAME=WEIGHT,NAME=WEIGHT. A model that is not named has weight 1."""
    memory_budget_bytes: NonNegative = 0
    """CPU memory budget of the process; 0: no limit. The part that the models leave free bounds how many texts are
    decoded together, divided by --model-weights. Leave room for two versions of a model during a replacement."""
    pivot: str = ""
    """Pivot language (BCP-47): if no model covers a pair, translate through it with two models. The response names
    both. Default: off."""
    watch_seconds: NonNegative = 0
    """How often to check bundles for new versions; 0: only on SIGHUP."""
    lanes: Annotated[int, Field(ge=1, le=256)] = 1
    """Batches that run side by side, over all models. Each model has a separate cache for each lane."""
    threads_per_lane: Annotated[int, Field(ge=0, le=1024)] = 0
    """Compute threads of each lane; 0: an equal share of the processors available to the process."""
    max_rows: Annotated[int, Field(ge=1, le=4096)] = 32
    """Maximum number of texts decoded together in one lane."""
    batch_tokens: Positive = 16384
    """Maximum number of tokens decoded together in one lane: source tokens plus the output limit of each text."""
    encode_tokens: Positive = 512
    """Maximum number of source tokens encoded between two decoding steps; a longer text is encoded alone."""
    admission_steps: Positive = 3
    """Decoding steps between two admissions. More steps encode more new texts together; fewer steps shorten the wait
    after a recent admission."""
    queue_sequences: Positive = 1024
    """Maximum number of queued texts; further calls are refused."""
    queue_tokens: Positive = 262144
    """Maximum number of queued tokens, source tokens plus the output limit of each text; further calls are refused."""
    repetition_tokens: Annotated[int, Field(ge=0, le=256)] = 16
    """Longest repeated pattern, in tokens, that counts as a loop and stops an output; 0: outputs are never stopped."""
    repetition_times: Annotated[int, Field(ge=2)] = 10
    """Consecutive repetitions of a pattern that count as a loop."""
    tls_certificate: str = ""
    """PEM file of the server's certificate and its intermediates; clients must then use TLS. All three TLS files are
    reloaded when they change."""
    tls_key: str = ""
    """PEM file of the certificate's private key, unencrypted."""
    tls_client_ca: str = ""
    """PEM file of certificate authorities; each client must then present a certificate signed by one (mutual TLS)."""
    tokens_file: str = ""
    """File of bearer tokens, one per line: the token, or sha256: and its SHA-256 in hexadecimal. Reloaded when it
    changes. All calls except health checks then need a token. DRAGOMAN_TOKENS may hold further tokens, separated by
    spaces."""
    token_calls_per_second: NonNegative = 0
    """Maximum number of calls per second for each token; 0: no limit."""
    token_calls: NonNegative = 0
    """Maximum number of concurrent calls for each token; 0: no limit."""
    max_texts: PositiveInt32 = 1024
    """Maximum number of texts in one call."""
    max_message_bytes: Bytes = 4 * 2**20
    """Maximum size of a request."""
    max_answer_bytes: Bytes = 64 * 2**20
    """Maximum size of the vectors in one Embed response."""
    max_metadata_bytes: Annotated[int, Field(ge=1024, le=2**20)] = 16384
    """Maximum size of the metadata of one call."""
    max_call_seconds: Seconds = 300
    """Time limit of a call, regardless of its deadline. A call forecast to take longer is refused; one that does take
    longer is ended."""
    connection_calls: PositiveInt32 = 1024
    """Maximum number of concurrent calls on one connection; further calls wait in the client."""
    connection_age_seconds: Seconds = 1800
    """Approximate age at which a connection is closed, after its calls have ended. Clients then reconnect and discover
    new servers."""
    connection_idle_seconds: Seconds = 600
    """Idle time after which a connection is closed; the next call opens another."""
    run_timeout_seconds: NonNegative = 30
    """Time limit of one decoding step or encoding. Beyond it the server counts as hung and answers no calls until the
    run ends. 0: no limit."""
    grace_seconds: NonNegative = 20
    """How long running calls may continue after SIGTERM or SIGINT."""
    log_format: Literal["console", "json"] = "console"
    """Log format: console for people, json for machines."""
    log_calls_per_second: NonNegative = 100
    """Maximum number of calls logged per second, separately for successes and failures; 0: calls are not logged."""
    log_texts: bool = False
    """Log source texts and translations. They may be confidential."""
    traces_endpoint: str = ""
    """OTLP/gRPC endpoint for call traces, such as http://127.0.0.1:4317; https:// uses TLS. Requires
    the extra traces."""
    traces_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Fraction of calls to trace when the caller makes no sampling decision."""
    warmup_seconds: NonNegative = 10
    """Time limit of a model's warm-up, which runs all batch and cache sizes, small ones first, and then trial calls.
    0: no warm-up."""
    verify: bool = True
    """Replay a bundle's golden answers before serving it."""

    @field_validator("model_weights")
    @classmethod
    def _check_weights(cls, weights: str) -> str:
        _parse_weights(weights)
        return weights

    @field_validator("traces_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"must begin with http:// or https://, is {endpoint!r}")
        return endpoint

    @property
    def metrics_address(self) -> str:
        """Address to listen on for /metrics, without the port."""
        return self.metrics_host or self.host

    @property
    def compute_threads(self) -> int:
        """Number of compute threads, over all lanes."""
        return self.lanes * (self.threads_per_lane or max(1, allowed_cpus() // self.lanes))

    @property
    def session_threads(self) -> int:
        """Number of threads of one model run: its lane's own thread and all threads that belong to no lane."""
        return self.compute_threads - self.lanes + 1

    @property
    def cuda(self) -> CudaOptions:
        """Options of the CUDA provider."""
        return CudaOptions(
            device=self.cuda_device,
            memory_limit_bytes=self.cuda_memory_limit_bytes,
            arena_doubles=self.cuda_arena == "double",
            cudnn_search=self.cudnn_search,
            graphs=self.cuda_graphs,
        )

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each model named in `model_weights`."""
        return _parse_weights(self.model_weights)

    @property
    def limits(self) -> BatchLimits:
        """Limits of the scheduler."""
        return BatchLimits(
            rows=self.max_rows,
            tokens=self.batch_tokens,
            encode_tokens=self.encode_tokens,
            queue_sequences=self.queue_sequences,
            queue_tokens=self.queue_tokens,
            admission_steps=self.admission_steps,
            repetition=Repetition(self.repetition_tokens, self.repetition_times) if self.repetition_tokens else None,
        )


def option_of(name: str) -> str:
    """The command-line option of the setting `name`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of the setting `name`."""
    return PREFIX + name.upper()


def fault_line(error: ValidationError, options: Collection[str]) -> str:
    """The first fault in one line: its option or variable, the bound and the value.

    `options` are the settings that were given on the command line; the others come from the environment.
    """
    fault = error.errors(include_url=False)[0]
    name = str(fault["loc"][0])
    text = FAULTS.get(fault["type"], "{msg}").format(**{**fault, **fault.get("ctx", {})})
    return f"{option_of(name) if name in options else variable_of(name)} {text}"


def _parse_weights(weights: str) -> Mapping[str, float]:
    parts = [part.rpartition("=") for part in weights.split(",") if part.strip()]
    return {name.strip(): _parse_weight(name, weight) for name, _, weight in parts}


def _parse_weight(name: str, weight: str) -> float:
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not name.strip() or "=" in name or not 0 < number < math.inf:
        raise ValueError(f"must be like NAME=2,NAME=1, each weight above 0; has {f'{name}={weight}'!r}")
    return number
