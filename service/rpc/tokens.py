"""Bearer tokens: where they come from, and whether one is known. Only their SHA-256 is kept."""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dragoman.client.channel import is_token
from dragoman.service.errors import StartupError
from dragoman.service.system.file_watch import WatchedFiles

TOKENS_VARIABLE = "DRAGOMAN_TOKENS"
"""Environment variable of tokens, separated by spaces."""

MIN_CHARACTERS = 16
"""A hash that is made fast keeps no secret that is guessed fast."""

HASHED = "sha256:"
"""Begins a line that has, in hexadecimal, the SHA-256 of a token in place of the token."""

HASHED_CHARACTERS = 64

Digest = bytes


def token_digest(token: str) -> Digest:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def find_token(token: str, known: Iterable[Digest]) -> Digest | None:
    """The digest of `token` if it is one of `known`; how long that takes tells nothing about them."""
    asked, found = token_digest(token), None
    for digest in known:
        if hmac.compare_digest(asked, digest):
            found = digest
    return found


def token_source(file: str, environment: Mapping[str, str]) -> Callable[[], tuple[Digest, ...]] | None:
    """What gives the tokens that hold now, those of `file` and of `environment`; None where none were ever set.

    The file is read anew when it changes. Raises StartupError that says what is wrong, without any token.
    """
    try:
        given = (
            _digests(environment[TOKENS_VARIABLE].split(), TOKENS_VARIABLE) if TOKENS_VARIABLE in environment else ()
        )
        if not file:
            return (lambda: given) if given else None
        path = Path(file)
        watched = WatchedFiles("tokens", (path,), lambda: (*given, *_digests(_lines(path), file)))
    except (OSError, ValueError) as error:
        raise StartupError(f"tokens: {error}") from error
    return watched.current


def _lines(path: Path) -> list[str]:
    """The lines that are not empty and no comment, ended as they were."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _digests(tokens: Iterable[str], where: str) -> tuple[Digest, ...]:
    found = tuple(_digest(token, number, where) for number, token in enumerate(tokens, start=1))
    if not found:
        raise ValueError(f"{where} holds no token")
    return found


def _digest(token: str, number: int, where: str) -> Digest:
    if token.startswith(HASHED):
        try:
            digest = bytes.fromhex(token.removeprefix(HASHED))
        except ValueError:
            digest = b""
        if 2 * len(digest) != HASHED_CHARACTERS:
            raise ValueError(
                f"token {number} of {where} must have {HASHED_CHARACTERS} hexadecimal digits after {HASHED}"
            )
        return digest
    if not is_token(token):
        raise ValueError(f"token {number} of {where} must be of printable ASCII without spaces")
    if len(token) < MIN_CHARACTERS:
        raise ValueError(f"token {number} of {where} must have at least {MIN_CHARACTERS} characters, has {len(token)}")
    return token_digest(token)
