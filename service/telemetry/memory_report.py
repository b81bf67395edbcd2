"""Where the process's memory goes, part by part. Each part is measured by itself, so that their sum can be wrong.

    weights        resident pages of a model's mapped weights, now
    buffers        what the allocators had more after a model was loaded than before: the runtime's graphs, the weights
                   that it copied into another layout, the tokenizer; with them the inputs and outputs of runs
    cache          what was reserved, what of it is resident, and what running texts use
    working        by how much a model's runs have grown the allocators since these last gave back what was free
    libraries      resident pages of all other files: programs and libraries, now
    interpreter    what the allocators had before the first model: Python, gRPC and the runtime

What Python and gRPC come to need while calls run is in none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.client.values import ModelMemory, ProcessMemory
from dragoman.service.engine.engine import Engine
from dragoman.service.system.resident import anonymous_bytes, mapped_bytes, resident_memory_bytes


class MemoryHolder(Protocol):
    """A model whose memory is reported."""

    @property
    def engine(self) -> Engine:
        """Its engine, which measures caches and runs."""

    @property
    def weights_file(self) -> str:
        """Path of the file that its weights are mapped from; "" if there is none."""

    @property
    def held_bytes(self) -> int:
        """Growth of the allocators by loading it, caches apart."""


@dataclass(frozen=True)
class MemoryReport:
    """All of it at one moment."""

    resident: int
    """By the kernel."""
    process: ProcessMemory
    models: tuple[ModelMemory, ...]
    """In the order of the models that were asked for."""


class MemoryReporter:
    """Of one process."""

    def __init__(self) -> None:
        self._interpreter = anonymous_bytes()

    def begin(self) -> None:
        """Everything but the models is there."""
        self._interpreter = anonymous_bytes()

    def look(self, models: Sequence[MemoryHolder]) -> MemoryReport:
        """What all of it is now; takes some milliseconds. Any thread may call it."""
        mapped = mapped_bytes()
        files = {model.weights_file for model in models}
        libraries = sum(held for path, held in mapped.items() if path not in files)
        process = ProcessMemory(libraries, self._interpreter)
        return MemoryReport(resident_memory_bytes(), process, tuple(_model_memory(model, mapped) for model in models))


def _model_memory(model: MemoryHolder, mapped: dict[str, int]) -> ModelMemory:
    held = model.engine.memory()
    # Where the system does not say what is resident, all of the file is taken to be.
    weights = mapped.get(model.weights_file, 0) if mapped and model.weights_file else held.weights
    return ModelMemory(
        weights=weights,
        buffers=model.held_bytes + held.buffers,
        working=held.working,
        cache_reserved=held.cache_reserved,
        cache_resident=held.cache_resident,
        cache_used=held.cache_used,
    )
