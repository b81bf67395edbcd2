"""What a server or one of its models does: start, serve, hang, stop, or nothing; and how many calls it is busy with."""

import asyncio
from enum import Enum

from dragoman.service.errors import NotServingError


class State(Enum):
    """The value says why no calls are taken."""

    STARTING = "the server is starting"
    SERVING = "the server is serving"
    HANGING = "the model does not answer; the server serves again when it does"
    STOPPING = "the server is stopping"
    BROKEN = "the engine has stopped; the server must be restarted"


class Lifecycle:
    """The state of one server or model. Belongs to its event loop; only `state` may be read from elsewhere.

    `with lifecycle:` stands around each call.
    """

    def __init__(self, state: State = State.STARTING) -> None:
        self.state = state
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """Whether calls are answered now."""
        return self.state is State.SERVING

    @property
    def alive(self) -> bool:
        """Whether nothing speaks for a restart."""
        return self.state not in (State.HANGING, State.BROKEN)

    def move(self, state: State) -> None:
        """Go on to `state`. What stops does nothing else any more."""
        if self.state is not State.STOPPING:
            self.state = state

    def __enter__(self) -> None:
        """A call comes in, and goes on until `__exit__`. Raises NotServingError unless serving."""
        if not self.ready:
            raise NotServingError(self.state.value)
        self._calls += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is left."""
        await self._idle.wait()
