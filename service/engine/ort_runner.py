"""The runner over ONNX Runtime: owns sessions, buffers and bindings.

A step copies nothing: every input and output is bound by pointer to the first rows of a buffer, and the caches are
input and output at once, so that `TensorScatter` updates them in place. Bindings are made anew only when the number
of rows or a capacity changes.
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
from dragoman.service.engine.providers import Asked, CudaOptions, asked_of_runtime, really_used
from dragoman.service.engine.runner import Memory, MemoryRefusedError, RowInput
from dragoman.service.engine.step import Step
from dragoman.service.engine.working_memory import WorkingMemory

log = logging.getLogger(__name__)

FATAL_ONLY = 4
"""ONNX Runtime's log level: what goes wrong raises, and is reported once, by whoever catches it."""


REFUSALS = ("failed to allocate memory", "bad allocation", "bad_alloc", "out of memory")
"""How ONNX Runtime says, in lower case, that it was refused memory; the class of its errors does not tell."""

DEFAULT_CUDA = CudaOptions()

UNBOUND = slice(0, 0)
"""The rows that are bound where none are."""


@contextmanager
def _refusals_told() -> Iterator[None]:
    """Raise MemoryRefusedError in place of whatever says the same."""
    try:
        yield
    except Exception as error:
        words = str(error).lower()
        if isinstance(error, MemoryError) or any(refusal in words for refusal in REFUSALS):
            raise MemoryRefusedError(str(error)) from error
        raise


class OrtRunner:
    """Runs a bundle's two graphs; of one without a decoder, nothing but `embed` may be asked. See `Runner`."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        provider: str,
        threads: int,
        max_rows: int,
        cuda: CudaOptions = DEFAULT_CUDA,
    ) -> None:
        """Load the graphs for `max_rows` rows at most, on `threads` cores.

        `provider` is "cpu", "cuda", or "auto": cuda where it works, else cpu. Raises ProviderError where cuda is asked
        for and cannot be had; the runtime itself would fall back without a word.
        """
        self._manifest = manifest = bundle.manifest
        self._working = WorkingMemory()
        self._max_rows = max_rows
        size = manifest.dimensions
        self._pad_id = manifest.decoding.pad_id
        asked = asked_of_runtime(provider, cuda)
        _make_arena()
        self._encoder = _open_session(bundle, ENCODER_FILE, threads, asked)
        self._decoder: Any = None
        if manifest.translates:
            self._decoder = _open_session(bundle, DECODER_FILE, threads, asked)
        self.provider = really_used([each for each in (self._encoder, self._decoder) if each], provider)
        self._encoder_outputs = [spec.name for spec in encoder_spec(size, manifest.precision).outputs]
        self._decoder_spec = decoder_spec(size, manifest.precision, logits=False)
        self._weights_bytes = bundle.path(WEIGHTS_FILE).stat().st_size
        self._make_slots()

    def another(self) -> "OrtRunner":
        """A runner for another thread: sessions and working memory are shared, slots and bindings are its own."""
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

    @_refusals_told()
    def embed(self, sources: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """See `Runner`."""
        hidden = self._encode(sources, ["hidden"])[0].numpy()
        states = [rows[: len(source)].copy() for rows, source in zip(hidden, sources, strict=True)]
        self._working.refresh(self._shrink_arena)
        return states

    @_refusals_told()
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

    @_refusals_told()
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
        """What the encoder gives, each with a method `numpy`."""
        lengths = np.array([len(source) for source in sources])
        rows, width = len(sources), padded_width(int(lengths.max()))
        ids = np.full((rows, width), self._pad_id)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        inputs = {name: _on_cpu(array) for name, array in (("input_ids", ids), ("source_lengths", lengths))}
        with self._working.run(ENCODER_FILE, (rows * width, rows * width * width)):
            # Not as arrays: all of them would be copied at once.
            found: list[Any] = self._encoder.run_with_ort_values(outputs, inputs)
        return found

    def _shrink_arena(self) -> None:
        """Give the allocator what no run uses of the runtime's arena: that is done at the end of a run, so make one."""
        pad = np.full((1, padded_width(1)), self._pad_id)
        inputs = {"input_ids": _on_cpu(pad), "source_lengths": _on_cpu(np.ones(1, np.int64))}
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        try:
            self._encoder.run_with_ort_values(["hidden"], inputs, options)
        except Exception:
            # Nobody's answer depends on it.
            log.warning("the working memory could not be given back", exc_info=True)

    def _bind(self, part: slice) -> None:
        """Bind every input and output to the rows `part` of its buffer."""
        rows = part.stop - part.start
        self._places = self._places or self._find_places()
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        for bind, name, buffer, tail, pointer, stride in self._places:
            # A pointer keeps nothing alive: the buffers are held by self, and replaced only where bound anew.
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
        """After a change of the caches: nothing is bound any more, and everything lies elsewhere."""
        self._bound = UNBOUND
        self._places = []


class Place(NamedTuple):
    """Where an input or output of a step lies, whatever the rows: looked up once, since they change often."""

    bind: Callable[..., None]
    """Of the binding."""
    name: str
    buffer: NDArray[Any]
    tail: tuple[int, ...] | None
    """The shape of one row; None where there are no rows."""
    pointer: int
    stride: int
    """From one row to the next, in bytes."""

    @classmethod
    def of(cls, bind: Callable[..., None], spec: TensorSpec, buffer: NDArray[Any]) -> "Place":
        """The place of `buffer`, which is bound as `spec`."""
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
    """Let the sessions that are opened next, until this is said again, share one arena of working memory.

    Were each graph to have an arena of its own, both would hold what their largest run took. Without any, glibc would
    be asked for aligned pieces, which it scatters: for 20 sources of the OPUS shape it then held 94 MiB, of which 28
    were ever used at once; one arena holds 40.
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


def _open_session(bundle: Bundle, name: str, threads: int, asked: Asked) -> onnxruntime.InferenceSession:
    """Open one graph on the providers that are `asked` for, as far as they can be had."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL_ONLY
    # Shapes differ from call to call; a plan of memory for each of them would only grow.
    options.enable_mem_pattern = False
    # Weights do not lie in the arena, so that it can be made small again.
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    # Threads spin while a step runs, where it pays, and sleep as soon as it has ended.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(bundle.path(name), options, providers=asked)
