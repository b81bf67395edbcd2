"""Learning the joint SentencePiece vocabulary of a corpus."""

from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from dragoman.model.tokenizer import MODEL_FILE


def train_tokenizer(lines: Iterable[str], folder: Path, pieces: int) -> None:
    """Learn `pieces` unigram pieces with byte fallback from `lines`, and write the model into `folder`.

    Ids 0 to 3 are padding, start, end and unknown; with byte fallback the last never occurs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / Path(MODEL_FILE).stem),
        vocab_size=pieces,
        model_type="unigram",
        byte_fallback=True,
        character_coverage=0.9999,
        normalization_rule_name="nmt_nfkc",
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        input_sentence_size=1_000_000,
        shuffle_input_sentence=True,
        minloglevel=2,
    )
    (folder / Path(MODEL_FILE).with_suffix(".vocab")).unlink()
