"""Every setting of the server: one field here, one flag of `dragoman serve`, one DRAGOMAN_... variable."""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TypeVar, cast

from dragoman.bundle.cpus import allowed_cpus
from dragoman.service.engine.providers import CudaOptions
from dragoman.service.engine.repetition import Repetition
from dragoman.service.engine.scheduler import BatchLimits

PREFIX = "DRAGOMAN_"
"""What the names of the variables begin with."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051
MAX_PORT = 65535

T = TypeVar("T")


@dataclass(frozen=True)
class SettingInfo:
    """What a setting is, apart from its name, type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


def _setting(
    default: T, help: str, minimum: float | None = None, maximum: float | None = None, choices: tuple[str, ...] = ()
) -> T:
    meaning = SettingInfo(help, minimum, maximum, choices)
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class ServerSettings:
    """How a server is run. Raises ValueError that names the setting, what it must be, and what it is."""

    host: str = _setting(DEFAULT_HOST, "Address to listen on, for gRPC and, unless --metrics-host is set, for metrics.")
    port: int = _setting(DEFAULT_PORT, "Port for gRPC; 0 takes a free one.", 0, MAX_PORT)
    metrics_host: str = _setting(
        "", "Address to listen on for /metrics, /healthz and /readyz. Left out: the same as --host."
    )
    metrics_port: int = _setting(9464, "Port for /metrics, /healthz and /readyz; 0 takes a free one.", 0, MAX_PORT)
    provider: str = _setting(
        "auto",
        "Where the model runs. auto: on CUDA where that can be had, else on the CPU.",
        choices=("auto", "cpu", "cuda"),
    )
    cuda_device: int = _setting(0, "Number of the GPU that the models run on.", 0, 1024)
    cuda_memory_limit_bytes: int = _setting(
        0, "Most memory that ONNX Runtime may take on the GPU for each graph of a model; 0 sets no limit.", 0
    )
    cuda_arena: str = _setting(
        "exact",
        "By how much that memory grows: exact, by what is needed; double, by powers of two.",
        choices=("exact", "double"),
    )
    cudnn_search: str = _setting(
        "heuristic",
        "How cuDNN chooses the algorithm of a convolution.",
        choices=("heuristic", "exhaustive", "default"),
    )
    cuda_graphs: bool = _setting(False, "Record what a run launches on the GPU, and replay it.")
    model_weights: str = _setting(
        "",
        "Shares of the processors where several models are busy, and of the memory budget: NAME=WEIGHT,NAME=WEIGHT; "
        "who is not named has 1.",
    )
    memory_budget_bytes: int = _setting(
        0,
        "Most memory that the process is to take, on the CPU: what its models leave of it bounds how many texts are "
        "decoded together, each model by its share (--model-weights). While a model is replaced, both versions are "
        "there and need room. 0 sets no limit.",
        0,
    )
    pivot: str = _setting(
        "",
        "Language (BCP-47) to go through where no model has the languages of a call and two have them together; the "
        "answer then tells of both. Left out: none.",
    )
    watch_seconds: int = _setting(
        0, "From one look at the bundles to the next, for new versions to be served; 0 looks on SIGHUP alone.", 0
    )
    lanes: int = _setting(
        1, "Batches that run side by side, over all models; each model has a cache of its own for each.", 1, 256
    )
    threads_per_lane: int = _setting(
        0, "Threads that compute in each lane; 0 divides the processors that the process may use.", 0, 1024
    )
    max_rows: int = _setting(32, "Most texts that are decoded together, in one lane.", 1, 4096)
    batch_tokens: int = _setting(
        16384, "Most tokens, of sources and longest outputs together, that are decoded together, in one lane.", 1
    )
    encode_tokens: int = _setting(
        512, "Most source tokens that are encoded between two steps of decoding; a longer text is encoded alone.", 1
    )
    admission_steps: int = _setting(
        3,
        "Steps of decoding from one admission of texts to the next: with more, more are encoded together; with fewer, "
        "a text waits less where others have just come.",
        1,
    )
    queue_sequences: int = _setting(1024, "Most texts that wait; a call beyond is refused.", 1)
    queue_tokens: int = _setting(
        262144, "Most tokens, of sources and longest outputs together, that wait; a call beyond is refused.", 1
    )
    repetition_tokens: int = _setting(
        16, "Longest pattern, in tokens, that makes a loop of an output, which is then stopped; 0 stops none.", 0, 256
    )
    repetition_times: int = _setting(10, "How many times in a row a pattern makes a loop.", 2)
    tls_certificate: str = _setting(
        "",
        "PEM file of the server's certificate and those between it and its authority: callers then need TLS. This and "
        "the next two are read anew when they change.",
    )
    tls_key: str = _setting("", "PEM file of the certificate's key, not encrypted.")
    tls_client_ca: str = _setting(
        "", "PEM file of authorities; each caller must then have a certificate that one of them signed (mutual TLS)."
    )
    tokens_file: str = _setting(
        "",
        "File of bearer tokens, one a line, or sha256: and its SHA-256 in hexadecimal; read anew when it changes. All "
        "calls but health then need one. Tokens may also stand in DRAGOMAN_TOKENS, separated by spaces.",
    )
    token_calls_per_second: int = _setting(0, "Most calls a second with one token; 0 sets no limit.", 0)
    token_calls: int = _setting(0, "Most calls at once with one token; 0 sets no limit.", 0)
    max_texts: int = _setting(1024, "Most texts of one call.", 1, 2**31 - 1)
    max_message_bytes: int = _setting(4 * 2**20, "Largest request.", 1024, 2**31 - 1)
    max_answer_bytes: int = _setting(64 * 2**20, "Largest answer of Embed, by its vectors.", 1024, 2**31 - 1)
    max_metadata_bytes: int = _setting(16384, "Most metadata of one call.", 1024, 2**20)
    max_call_seconds: int = _setting(
        300,
        "How long a call may take, whatever its own deadline: one that would take longer is refused, and one that does "
        "is ended.",
        1,
        2**31 // 1000 - 1,
    )
    connection_calls: int = _setting(
        1024, "Most calls at once on one connection; further ones wait at the caller.", 1, 2**31 - 1
    )
    connection_age_seconds: int = _setting(
        1800,
        "After about how long a connection is closed, once its calls have ended: the caller opens another, and finds "
        "servers that are new.",
        1,
        2**31 // 1000 - 1,
    )
    connection_idle_seconds: int = _setting(
        600, "How long a connection without calls is kept; the next call opens another.", 1, 2**31 // 1000 - 1
    )
    run_timeout_seconds: int = _setting(
        30,
        "How long the model may take for one step or one encoding before the server is held to hang and answers nobody "
        "until it goes on; 0 waits for ever.",
        0,
    )
    grace_seconds: int = _setting(20, "How long running calls may go on after SIGTERM or SIGINT.", 0)
    log_format: str = _setting("console", "Lines of the log: for people, or JSON.", choices=("console", "json"))
    log_calls_per_second: int = _setting(
        100, "Most calls that get a line in the log each second, of those that succeed and of the others; 0: none.", 0
    )
    log_texts: bool = _setting(
        False, "Write the texts of calls, and their translations, into the log. They may be confidential."
    )
    traces_endpoint: str = _setting(
        "",
        "Where traces of calls are sent, by OTLP over gRPC, such as http://127.0.0.1:4317; https:// uses TLS. Needs "
        "dragoman[traces].",
    )
    traces_ratio: float = _setting(1.0, "Part of the calls that is traced, where a caller does not say.", 0, 1)
    warmup_seconds: int = _setting(
        10,
        "How long a model may be warmed up before it is served: every size of batch and cache that calls may need is "
        "run, small ones first, and then the first calls are made in advance; 0 does nothing of it.",
        0,
    )
    verify: bool = _setting(True, "Replay a bundle's golden answers before serving it.")

    def __post_init__(self) -> None:
        """Check every setting against its own bounds."""
        for each in fields(self):
            _check(each.name, getattr(self, each.name), meaning_of(each))
        self.weights  # noqa: B018
        if self.traces_endpoint and not self.traces_endpoint.startswith(("http://", "https://")):
            raise ValueError(f"traces_endpoint must begin with http:// or https://, is {self.traces_endpoint!r}")

    @property
    def metrics_address(self) -> str:
        """Where /metrics is listened for, without its port."""
        return self.metrics_host or self.host

    @property
    def compute_threads(self) -> int:
        """How many threads are to compute, in all lanes."""
        return self.lanes * (self.threads_per_lane or max(1, allowed_cpus() // self.lanes))

    @property
    def cuda(self) -> CudaOptions:
        """The CUDA provider's part of the settings."""
        return CudaOptions(
            device=self.cuda_device,
            memory_limit_bytes=self.cuda_memory_limit_bytes,
            arena_doubles=self.cuda_arena == "double",
            cudnn_search=self.cudnn_search,
            graphs=self.cuda_graphs,
        )

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each model that is named in `model_weights`."""
        parts = [part.rpartition("=") for part in self.model_weights.split(",") if part.strip()]
        return {name.strip(): _weight(name, weight) for name, _, weight in parts}

    @property
    def session_threads(self) -> int:
        """How many threads a run of the model may use: one lane's own, and all that no lane is on."""
        return self.compute_threads - self.lanes + 1

    @property
    def limits(self) -> BatchLimits:
        """The scheduler's part of the settings."""
        return BatchLimits(
            rows=self.max_rows,
            tokens=self.batch_tokens,
            encode_tokens=self.encode_tokens,
            queue_sequences=self.queue_sequences,
            queue_tokens=self.queue_tokens,
            admission_steps=self.admission_steps,
            repetition=Repetition(self.repetition_tokens, self.repetition_times) if self.repetition_tokens else None,
        )


def meaning_of(setting: "Field[object]") -> SettingInfo:
    """Help and bounds of a field of ServerSettings."""
    return cast(SettingInfo, setting.metadata["meaning"])


def variable_of(name: str) -> str:
    """The environment variable of the setting `name`."""
    return PREFIX + name.upper()


def _weight(name: str, weight: str) -> float:
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not name.strip() or "=" in name or not 0 < number < math.inf:
        raise ValueError(f"model_weights must be like NAME=2,NAME=1, each weight above 0; has {f'{name}={weight}'!r}")
    return number


def _check(name: str, value: object, meaning: SettingInfo) -> None:
    if meaning.choices and value not in meaning.choices:
        raise ValueError(f"{name} must be one of {', '.join(meaning.choices)}, is {value!r}")
    if not isinstance(value, int | float):
        return
    if meaning.minimum is not None and not value >= meaning.minimum:
        raise ValueError(f"{name} must be at least {meaning.minimum}, is {value}")
    if meaning.maximum is not None and not value <= meaning.maximum:
        raise ValueError(f"{name} must be at most {meaning.maximum}, is {value}")
