import hashlib
from pathlib import Path

import pytest

from dragoman.service.errors import StartupError
from dragoman.service.rpc.tokens import find_token, token_digest, token_source

TOKEN, OTHER = "a-token-of-the-tests", "another-token-of-them"


def known(file: Path | None = None, variable: str | None = None) -> tuple[bytes, ...]:
    source = token_source(str(file or ""), {} if variable is None else {"DRAGOMAN_TOKENS": variable})
    return () if source is None else source()


def written(folder: Path, text: str) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    return path


def test_without_tokens_there_is_no_source() -> None:
    assert token_source("", {}) is None


def test_file_and_variable_are_combined(tmp_path: Path) -> None:
    digests = known(written(tmp_path, f"# old\n {TOKEN} \r\n\n"), OTHER)
    assert set(digests) == {token_digest(TOKEN), token_digest(OTHER)}
    assert find_token(TOKEN, digests) == token_digest(TOKEN)
    assert find_token(TOKEN[:-1], digests) is None


def test_only_digests_are_kept() -> None:
    (digest,) = known(variable=TOKEN)
    assert digest == hashlib.sha256(TOKEN.encode()).digest()


def test_a_file_may_hold_digests_instead_of_tokens(tmp_path: Path) -> None:
    digests = known(written(tmp_path, f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n"))
    assert find_token(TOKEN, digests) is not None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "holds no token"),
        ("# kite\n", "holds no token"),
        (f"{TOKEN}\nshort-secret", "token 2 of .*tokens must have at least 16 characters, has 12"),
        ("two words of a secret", "token 1 of .*tokens must be printable ASCII without spaces"),
        ("sécret-sécret-sécret", "token 1 of .*tokens must be printable ASCII without spaces"),
        ("sha256:secret", "token 1 of .*tokens must have 64 hexadecimal digits after sha256:"),
    ],
)
def test_a_faulty_file_is_reported_without_its_token(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(StartupError, match=fault) as caught:
        known(written(tmp_path, text))
    assert "secret" not in str(caught.value)
    assert "sécret" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="nowhere"):
        known(tmp_path / "nowhere")
