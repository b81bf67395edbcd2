"""Damaged tokenizer files: they are refused by name, or read as another tokenizer, but never end the process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from dragoman.bundle.tokenizers import SentencePieceTokenizer
from dragoman.bundle.tokenizers.library import LIBRARY_FILE, LibraryCutter
from dragoman.bundle.tokenizers.native import MODEL_FILE
from dragoman.bundle.tokenizers.pieces import VOCABULARY_FILE, read_vocabulary
from tests.golden.shipped import BUNDLE

TEXT = "The cat sat on the mat. ½ﬁ été 漢字"


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 1000, b"\xff" * 1000, b"\x80\x04cposix\nsystem\n", b"[" * 10**6, b"{}"]
)
def test_other_content_than_a_tokenizer_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MODEL_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=MODEL_FILE):
        SentencePieceTokenizer(tmp_path)
    (tmp_path / LIBRARY_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=LIBRARY_FILE):
        LibraryCutter(tmp_path)
    (tmp_path / VOCABULARY_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=VOCABULARY_FILE):
        read_vocabulary(tmp_path / VOCABULARY_FILE)


@pytest.mark.parametrize("number", [-1, 2**31, 10**30, 0.5, "0x"])
def test_an_invalid_id_in_a_vocabulary_is_refused(number: object, tmp_path: Path) -> None:
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps({"a": 0, "b": number}))
    with pytest.raises(ValueError, match=rf"{VOCABULARY_FILE}: b: "):
        read_vocabulary(tmp_path / VOCABULARY_FILE)


def byte_pairs() -> Tokenizer:
    made = Tokenizer(BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    return made


def test_a_panic_of_the_library_becomes_a_value_error(tmp_path: Path) -> None:
    content = json.loads(byte_pairs().to_str())
    content["model"]["continuing_subword_prefix"] = "x" * 100
    (tmp_path / LIBRARY_FILE).write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=rf"{LIBRARY_FILE}: not a complete tokenizer: the tokenizers library failed: range"
    ):
        LibraryCutter(tmp_path)


DAMAGE = """
import random, sys
from pathlib import Path
from dragoman.bundle.tokenizers import SentencePieceTokenizer

source, folder, text = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), sys.argv[3]
refused = 0
for seed in range(int(sys.argv[4])):
    rng, content = random.Random(seed), bytearray(source)
    for _ in range(rng.choice((1, 3, 10, 100))):
        # The pieces are at the start, everything else is at the end.
        content[rng.randrange(rng.choice((0, len(content) - 3000)), len(content))] = rng.randrange(256)
    if rng.random() < 0.2:
        del content[rng.randrange(len(content)):]
    (folder / "sentencepiece.model").write_bytes(content)
    try:
        tokenizer = SentencePieceTokenizer(folder)
        ids = tokenizer.encode(text)
        tokenizer.encode_pieces(text)
        tokenizer.decode(ids)
    except Exception:
        refused += 1
print(refused)
"""


def test_no_damaged_sentencepiece_model_ends_the_process(tmp_path: Path) -> None:
    arguments = [str(BUNDLE / "tokenizer" / MODEL_FILE), str(tmp_path), TEXT, "100"]
    run = subprocess.run([sys.executable, "-c", DAMAGE, *arguments], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-500:]
    assert 0 < int(run.stdout) < 100
