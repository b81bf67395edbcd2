"""The runner over ONNX Runtime: owns sessions, buffers and bindings.

A step copies nothing. Every input and output is bound by pointer to the first rows of a buffer, and each cache is both
input and output, so that `TensorScatter` updates it in place. Bindings change only with the number of rows or a
capacity.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle.graphs import (
    DECODER_FILE,
    ENCODER_FILE,
    TensorSpec,
    cross_key,
    cross_value,
    decoder_spec,
    encoder_spec,
    held_dtype,
    padded_width,
    self_key,
    self_value,
    updated,
)
from dragoman.bundle.manifest import WEIGHTS_FILE, Bundle
from dragoman.bundle.runtime import onnxruntime
from dragoman.service.engine.cache import SlotCache
from dragoman.service.engine.memory_budget import Costs
from dragoman.service.engine.providers import CudaOptions, Providers, provider_in_use, session_providers
from dragoman.service.engine.runner import Memory, MemoryRefusedError, RowInput
from dragoman.service.engine.step import Step
from dragoman.service.engine.working_memory import WorkingMemory

log = logging.getLogger(__name__)

FATAL_ONLY = 4
"""ONNX Runtime's log level: errors raise, and are logged once, where they are caught."""

REFUSALS = ("failed to allocate memory", "bad allocation", "bad_alloc", "out of memory")
"""Lower-case texts of ONNX Runtime's errors when memory ran out; their class does not show it."""

DEFAULT_CUDA = CudaOptions()

UNBOUND = slice(0, 0)
"""The bound rows if there is no binding."""


@contextmanager
def _refusals_raised() -> Iterator[None]:
    """Raise MemoryRefusedError in place of errors that mean the same."""
    try:
        yield
    except Exception as error:
        words = str(error).lower()
        if isinstance(error, MemoryError) or any(refusal in words for refusal in REFUSALS):
            raise MemoryRefusedError(str(error)) from error
        raise


class OrtRunner:
    """Runs a bundle's two graphs; without a decoder, only `embed` works. Methods without more are as in `Runner`."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        provider: str,
        threads: int,
        max_rows: int,
        cuda: CudaOptions = DEFAULT_CUDA,
    ) -> None:
        """Load the graphs for at most `max_rows` rows, on `threads` cores.

        `provider` is "cpu", "cuda", or "auto": cuda if available, else cpu. Raises ProviderError if "cuda" is
        unavailable; the runtime itself would silently fall back.
        """
        self._manifest = manifest = bundle.manifest
        self._working = WorkingMemory()
        self._max_rows = max_rows
        size = manifest.dimensions
        self._pad_id = manifest.decoding.pad_id
        providers = session_providers(provider, cuda)
        _make_arena()
        self._encoder = _open_session(bundle, ENCODER_FILE, threads, providers)
        self._decoder: Any = None
        if manifest.translates:
            self._decoder = _open_session(bundle, DECODER_FILE, threads, providers)
        self.provider = provider_in_use([each for each in (self._encoder, self._decoder) if each], provider)
        self._encoder_outputs = [spec.name for spec in encoder_spec(size, manifest.precision).outputs]
        self._decoder_spec = decoder_spec(size, manifest.precision, logits=False)
        self._weights_bytes = bundle.path(WEIGHTS_FILE).stat().st_size
        self._make_slots()

    def another(self) -> "OrtRunner":
        """Return a runner for another thread, sharing sessions and working memory but not slots or bindings."""
        runner = copy.copy(self)
        runner._make_slots()
        return runner

    def _make_slots(self) -> None:
        size, decoding, max_rows = self._manifest.dimensions, self._manifest.decoding, self._max_rows
        layers = range(size.decoder_layers)
        cross = [name(layer) for layer in layers for name in (cross_key, cross_value)]
        past = [name(layer) for layer in layers for name in (self_key, self_value)]
        sources, outputs = decoding.max_source_tokens, decoding.prompt_tokens - 1 + decoding.max_output_tokens
        held = held_dtype(self._manifest.precision)
        self._cross = SlotCache(cross, max_rows, size.heads, size.head_width, sources, held)
        self._past = SlotCache(past, max_rows, size.heads, size.head_width, outputs, held)
        self._small = _small_buffers(max_rows)
        self._lengths = self._small["source_lengths"]
        self._positions_used = 0
        self._binding: Any = self._decoder and self._decoder.io_binding()
        self._bound = UNBOUND
        self._places: list[Place] = []

    @property
    def width(self) -> int:
        """See `Runner`."""
        return self._manifest.dimensions.d_model

    @_refusals_raised()
    def embed(self, sources: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """See `Runner`."""
        hidden = self._encode(sources, ["hidden"])[0].numpy()
        states = [rows[: len(source)].copy() for rows, source in zip(hidden, sources, strict=True)]
        self._working.refresh(self._shrink_arena)
        return states

    @_refusals_raised()
    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        """See `Runner`."""
        names = self._encoder_outputs[1:]
        encoded = self._encode(sources, names)
        width = encoded[0].shape()[2]
        rows = slice(first_row, first_row + len(sources))
        self._lengths[rows] = [len(source) for source in sources]
        if self._cross.fit(int(self._lengths[: rows.stop].max()), first_row):
            self._unbind()
        held = self._cross.arrays
        for name, values in zip(names, encoded, strict=True):
            held[name][rows, :, :width] = values.numpy()

    @_refusals_raised()
    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        """See `Runner`."""
        part = slice(0, len(rows)) if only is None else slice(only, only + 1)
        if self._past.fit(max(row.position for row in rows) + 1, len(rows)):
            self._unbind()
        if part != self._bound:
            self._bind(part)
        self._small["token"][part, 0] = [row.token for row in rows[part]]
        self._small["position"][part] = [row.position for row in rows[part]]
        self._small["scored"][...] = scored
        self._positions_used = sum(row.position + 1 for row in rows)
        size = (len(rows), len(rows) * self._past.capacity)
        with self._working.run(DECODER_FILE, size, self._resident_cache_bytes):
            self._decoder.run_with_iobinding(self._binding)
        self._working.refresh(self._shrink_arena)
        tokens = self._small["next_token"][part, 0].tolist()
        log_probs = self._small["log_prob"][part].tolist()
        return [Step(token, log_prob) for token, log_prob in zip(tokens, log_probs, strict=True)]

    def move_row(self, source: int, target: int) -> None:
        """See `Runner`."""
        self._cross.move(source, target)
        self._past.move(source, target)
        self._lengths[target] = self._lengths[source]

    def clear_row(self, row: int) -> None:
        """See `Runner`."""
        self._cross.clear(row)
        self._past.clear(row)

    def rest(self) -> None:
        """See `Runner`."""
        shrunk = [cache.shrink() for cache in (self._cross, self._past)]
        if any(shrunk):
            self._unbind()
        self._working.give_back(self._shrink_arena)
        self._positions_used = 0
        self._lengths[:] = 0

    def memory(self) -> Memory:
        """See `Runner`."""
        sources = int(self._lengths[: self._bound.stop].sum())
        used = self._positions_used * self._past.bytes_per_position + sources * self._cross.bytes_per_position
        return Memory(
            weights=self._weights_bytes,
            cache_reserved=self._cross.nbytes + self._past.nbytes,
            cache_resident=self._resident_cache_bytes(),
            cache_used=used,
            buffers=sum(buffer.nbytes for buffer in self._small.values()),
            working=self._working.nbytes,
            source_positions=self._cross.capacity,
            output_positions=self._past.capacity,
        )

    def _resident_cache_bytes(self) -> int:
        return self._cross.resident_bytes + self._past.resident_bytes

    def costs(self) -> Costs:
        """See `Runner`."""
        return Costs(self._cross.side, self._past.side)

    def most_working(self) -> int:
        """See `Runner`."""
        return self._working.most_bytes

    def _encode(self, sources: Sequence[Sequence[int]], outputs: list[str]) -> list[Any]:
        """Encode `sources`, and return the named outputs as OrtValues [rows, padded width, ...]."""
        lengths = np.array([len(source) for source in sources])
        rows, width = len(sources), padded_width(int(lengths.max()))
        ids = np.full((rows, width), self._pad_id)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        inputs = {name: _on_cpu(array) for name, array in (("input_ids", ids), ("source_lengths", lengths))}
        with self._working.run(ENCODER_FILE, (rows * width, rows * width * width)):
            # Not `run`: it would copy all outputs into arrays at once.
            found: list[Any] = self._encoder.run_with_ort_values(outputs, inputs)
        return found

    def _shrink_arena(self) -> None:
        """Return the unused part of the runtime's arena to the allocator, which only the end of a run does."""
        pad = np.full((1, padded_width(1)), self._pad_id)
        inputs = {"input_ids": _on_cpu(pad), "source_lengths": _on_cpu(np.ones(1, np.int64))}
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        try:
            self._encoder.run_with_ort_values(["hidden"], inputs, options)
        except Exception:
            # No answer depends on it.
            log.warning("could not return unused working memory to the allocator", exc_info=True)

    def _bind(self, part: slice) -> None:
        """Bind every input and output to the rows `part` of its buffer."""
        rows = part.stop - part.start
        self._places = self._places or self._find_places()
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        for bind, name, buffer, tail, pointer, stride in self._places:
            # A pointer keeps no buffer alive: self holds them, and unbinds before it replaces them.
            shape = buffer.shape if tail is None else (rows, *tail)
            bind(name, "cpu", 0, buffer.dtype, shape, pointer + part.start * stride)
        self._bound = part

    def _find_places(self) -> list["Place"]:
        past = self._past.arrays
        carried = {updated(name): array for name, array in past.items()}
        buffers: dict[str, NDArray[Any]] = {**self._small, **self._cross.arrays, **past, **carried}
        return [
            Place.of(bind, spec, buffers[spec.name])
            for bind, specs in (
                (self._binding.bind_input, self._decoder_spec.inputs),
                (self._binding.bind_output, self._decoder_spec.outputs),
            )
            for spec in specs
        ]

    def _unbind(self) -> None:
        """Discard the binding and all pointers after a change of the caches."""
        self._bound = UNBOUND
        self._places = []


class Place(NamedTuple):
    """Location of an input or output of a step, for any rows: kept because the rows change often."""

    bind: Callable[..., None]
    """`bind_input` or `bind_output` of the binding."""
    name: str
    buffer: NDArray[Any]
    tail: tuple[int, ...] | None
    """Shape of one row; None for a scalar."""
    pointer: int
    stride: int
    """Bytes from one row to the next."""

    @classmethod
    def of(cls, bind: Callable[..., None], spec: TensorSpec, buffer: NDArray[Any]) -> "Place":
        """Locate `buffer`, which is bound as `spec`."""
        if not spec.axes:
            return cls(bind, spec.name, buffer, None, buffer.ctypes.data, 0)
        return cls(bind, spec.name, buffer, buffer.shape[1:], buffer.ctypes.data, buffer.strides[0])


def _on_cpu(array: NDArray[Any]) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _small_buffers(rows: int) -> dict[str, NDArray[Any]]:
    return {
        "token": np.zeros((rows, 1), np.int64),
        "position": np.zeros(rows, np.int64),
        "source_lengths": np.zeros(rows, np.int64),
        "scored": np.zeros((), np.bool_),
        "next_token": np.zeros((rows, 1), np.int64),
        "log_prob": np.zeros(rows, np.float32),
    }


def _make_arena() -> None:
    """Make one arena of working memory for the sessions opened until the next call.

    With an arena for each graph, both would keep the memory of their largest run. Without any, glibc scatters aligned
    blocks: for 20 sources of the OPUS shape it then held 94 MiB, of which at most 28 were in use at once; one arena
    holds 40.
    """
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    defaults = {
        "max_mem": 0,
        "arena_extend_strategy": 0,
        "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
    }
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(defaults))


def _open_session(bundle: Bundle, name: str, threads: int, providers: Providers) -> onnxruntime.InferenceSession:
    """Open one graph on the first of `providers` that is available."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL_ONLY
    # Shapes differ from call to call, and a memory plan for each of them would only grow.
    options.enable_mem_pattern = False
    # Weights stay out of the arena, so that it can shrink.
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    # Threads spin only while a step runs, where it pays.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(bundle.path(name), options, providers=providers)
