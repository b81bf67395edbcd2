"""Loads the known bearer tokens and recognizes them. Only their SHA-256 digests are kept."""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dragoman.client.channel import is_token
from dragoman.service.errors import StartupError
from dragoman.service.system.file_watch import WatchedFiles

TOKENS_VARIABLE = "DRAGOMAN_TOKENS"
"""Environment variable that holds tokens, separated by spaces."""

MIN_CHARACTERS = 16
"""Minimum length of a token: a fast hash protects no secret short enough to guess."""

HASH_PREFIX = "sha256:"
"""Prefix of an entry that gives a token's SHA-256, in hexadecimal, instead of the token."""

HEX_DIGITS = 64

Digest = bytes


def token_digest(token: str) -> Digest:
    """SHA-256 of `token`."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def find_token(token: str, known: Iterable[Digest]) -> Digest | None:
    """The digest of `token` if it is in `known`. The time taken reveals nothing about `known`."""
    wanted, found = token_digest(token), None
    for digest in known:
        if hmac.compare_digest(wanted, digest):
            found = digest
    return found


def token_source(file: str, environment: Mapping[str, str]) -> Callable[[], tuple[Digest, ...]] | None:
    """A function that returns the digests valid now, from `file` and `environment`; None if neither is set.

    It reloads the file when that changes. Raises StartupError that names the fault, without any token.
    """
    try:
        given = (
            _digests(environment[TOKENS_VARIABLE].split(), TOKENS_VARIABLE) if TOKENS_VARIABLE in environment else ()
        )
        if not file:
            return (lambda: given) if given else None
        path = Path(file)
        watched = WatchedFiles("bearer tokens", (path,), lambda: (*given, *_digests(_lines(path), file)))
    except (OSError, ValueError) as error:
        raise StartupError(f"tokens: {error}") from error
    return watched.current


def _lines(path: Path) -> list[str]:
    """The lines of the file, stripped, without empty lines and comments."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _digests(tokens: Iterable[str], where: str) -> tuple[Digest, ...]:
    found = tuple(_digest(token, number, where) for number, token in enumerate(tokens, start=1))
    if not found:
        raise ValueError(f"{where} holds no token")
    return found


def _digest(token: str, number: int, where: str) -> Digest:
    if token.startswith(HASH_PREFIX):
        try:
            digest = bytes.fromhex(token.removeprefix(HASH_PREFIX))
        except ValueError:
            digest = b""
        if 2 * len(digest) != HEX_DIGITS:
            raise ValueError(f"token {number} of {where} must have {HEX_DIGITS} hexadecimal digits after {HASH_PREFIX}")
        return digest
    if not is_token(token):
        raise ValueError(f"token {number} of {where} must be printable ASCII without spaces")
    if len(token) < MIN_CHARACTERS:
        raise ValueError(f"token {number} of {where} must have at least {MIN_CHARACTERS} characters, has {len(token)}")
    return token_digest(token)
