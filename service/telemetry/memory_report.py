"""The process's memory by part. Parts are measured independently, so that their sum is a real check.

    weights        resident pages of a model's mapped weights, now
    buffers        growth of the allocators by loading a model: the runtime's graphs, weights that it copied into
                   another layout, the tokenizer; also the inputs and outputs of runs
    cache          bytes reserved, the resident part of them, and the part that running texts use
    working        growth of the allocators by a model's runs since they last returned free memory
    libraries      resident pages of all other files: programs and libraries, now
    interpreter    bytes of the allocators before the first model: Python, gRPC and the runtime

Memory that Python and gRPC take while calls run is in none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.client.values import ModelMemory, ProcessMemory
from dragoman.service.engine.engine import Engine
from dragoman.service.system.process import resident_memory_bytes
from dragoman.service.system.resident import anonymous_bytes, mapped_bytes


class MemoryHolder(Protocol):
    """A model with its part in the report."""

    @property
    def engine(self) -> Engine:
        """The model's engine, which measures caches and runs."""

    @property
    def weights_file(self) -> str:
        """Path of the file that the weights are mapped from; "" if there is none."""

    @property
    def held_bytes(self) -> int:
        """Growth of the allocators by loading the model, without caches."""


@dataclass(frozen=True)
class MemoryReport:
    """Memory at one moment, in bytes."""

    resident: int
    """Resident memory of the process, by the kernel."""
    process: ProcessMemory
    models: tuple[ModelMemory, ...]
    """One for each model, in the order given to `look`."""


class MemoryReporter:
    """Reports the memory of this process."""

    def __init__(self) -> None:
        self._interpreter = anonymous_bytes()

    def begin(self) -> None:
        """Set the base of the report: all but the models is loaded."""
        self._interpreter = anonymous_bytes()

    def look(self, models: Sequence[MemoryHolder]) -> MemoryReport:
        """The report of now. Takes some milliseconds of blocking file reads; any thread may call it."""
        mapped = mapped_bytes()
        files = {model.weights_file for model in models}
        libraries = sum(held for path, held in mapped.items() if path not in files)
        process = ProcessMemory(libraries, self._interpreter)
        return MemoryReport(resident_memory_bytes(), process, tuple(_model_memory(model, mapped) for model in models))


def _model_memory(model: MemoryHolder, mapped: dict[str, int]) -> ModelMemory:
    held = model.engine.memory()
    # A system that does not report resident pages: the whole file is taken as resident.
    weights = mapped.get(model.weights_file, 0) if mapped and model.weights_file else held.weights
    return ModelMemory(
        weights=weights,
        buffers=model.held_bytes + held.buffers,
        working=held.working,
        cache_reserved=held.cache_reserved,
        cache_resident=held.cache_resident,
        cache_used=held.cache_used,
    )
