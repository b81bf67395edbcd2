"""State of a server or of one model, from starting to stopped, and the number of its running calls."""

import asyncio
from enum import Enum

from dragoman.service.errors import NotServingError


class State(Enum):
    """The value explains to a caller why calls are refused."""

    STARTING = "the server is starting"
    SERVING = "the server is serving"
    HANGING = "the model does not answer; serving resumes when it does"
    STOPPING = "the server is stopping"
    BROKEN = "the engine has stopped; the server must be restarted"


class Lifecycle:
    """State and running calls of one server or model. Belongs to one event loop; other threads may only read `state`.

    Each call runs inside `with lifecycle:`.
    """

    def __init__(self, state: State = State.STARTING) -> None:
        self.state = state
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """Whether calls are served now."""
        return self.state is State.SERVING

    @property
    def alive(self) -> bool:
        """Whether a restart is unnecessary; False while HANGING or BROKEN."""
        return self.state not in (State.HANGING, State.BROKEN)

    def move(self, state: State) -> None:
        """Change to `state`, unless already STOPPING, which is final."""
        if self.state is not State.STOPPING:
            self.state = state

    def __enter__(self) -> None:
        """Begin a call, which `__exit__` ends. Raises NotServingError unless serving."""
        if not self.ready:
            raise NotServingError(self.state.value)
        self._calls += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until the last running call has ended."""
        await self._idle.wait()
