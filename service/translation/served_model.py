"""One version of a model that answers calls: its translator, its engine and its lifecycle."""

import asyncio

from dragoman.client.values import ModelInfo
from dragoman.service.engine.engine import Engine
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.translation.translator import Translator


class ServedModel:
    """One version of a model that answers. Belongs to the event loop of its server."""

    def __init__(
        self,
        info: ModelInfo,
        translator: Translator,
        engine: Engine,
        runtime_version: str,
        weights_file: str = "",
        held_bytes: int = 0,
    ) -> None:
        """`weights_file` and `held_bytes` are those of LoadedModel."""
        self.info = info
        self.translator = translator
        self.engine = engine
        self.runtime_version = runtime_version
        self.weights_file = weights_file
        self.held_bytes = held_bytes
        self.lifecycle = Lifecycle(State.SERVING)
        """SERVING, HANGING or BROKEN; STOPPING once another version has taken its place, until the last call is out."""
        self.watching: asyncio.Task[None] | None = None
        """Looks whether the engine gets on, if somebody does."""

    @property
    def fixed_bytes(self) -> int:
        """Memory that it takes whatever runs, all of its file of weights counted."""
        held = self.engine.memory()
        return held.weights + held.buffers + self.held_bytes

    @property
    def least_bytes(self) -> float:
        """Memory for one text at its limits in each lane."""
        return self.engine.least_memory(self.info.max_source_tokens, self.info.max_output_tokens)
