"""One version of a model that serves calls, with its translator, engine and lifecycle."""

import asyncio
from collections.abc import Sequence

from dragoman.client.values import EmbedResult, ModelInfo, TranslateResult
from dragoman.service.engine.engine import Engine
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.translation.options import EmbedOptions, TranslateOptions
from dragoman.service.translation.translator import Translator


class ServedModel:
    """One version of a model that serves calls. Belongs to the event loop of its server."""

    def __init__(
        self,
        info: ModelInfo,
        translator: Translator,
        engine: Engine,
        runtime_version: str,
        weights_file: str = "",
        held_bytes: int = 0,
    ) -> None:
        """`weights_file` and `held_bytes` are as in LoadedModel."""
        self.info = info
        self.translator = translator
        self.engine = engine
        self.runtime_version = runtime_version
        self.weights_file = weights_file
        self.held_bytes = held_bytes
        self.lifecycle = Lifecycle(State.SERVING)
        """SERVING, HANGING or BROKEN; STOPPING from its replacement by another version until its last call ends."""
        self.watching: asyncio.Task[None] | None = None
        """Watchdog of the engine, if one runs."""

    async def translate(
        self, texts: Sequence[str], options: TranslateOptions, seconds_left: float | None = None
    ) -> TranslateResult:
        """As `Translator.translate`. Raises NotServingError unless serving."""
        with self.lifecycle:
            return await self.translator.translate(texts, options, seconds_left)

    async def embed(
        self, texts: Sequence[str], options: EmbedOptions, seconds_left: float | None = None
    ) -> EmbedResult:
        """As `Translator.embed`. Raises NotServingError unless serving."""
        with self.lifecycle:
            return await self.translator.embed(texts, options, seconds_left)

    @property
    def fixed_bytes(self) -> int:
        """Memory held regardless of load, with the whole weights file counted."""
        held = self.engine.memory()
        return held.weights + held.buffers + self.held_bytes

    @property
    def least_bytes(self) -> float:
        """Minimum working memory: one text at the model's limits in each lane."""
        return self.engine.least_memory(self.info.max_source_tokens, self.info.max_output_tokens)
