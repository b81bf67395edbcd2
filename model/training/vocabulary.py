"""Learning the joint SentencePiece vocabulary of a corpus."""

import io
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from dragoman.bundle.tokenizers.native import MODEL_FILE


def train_tokenizer(lines: Iterable[str], folder: Path, pieces: int) -> None:
    """Learn `pieces` unigram pieces with byte fallback from `lines`, and write the model into `folder`.

    Ids 0 to 3 are padding, start, end and unknown; with byte fallback the last never occurs. Raises ValueError
    if the lines do not yield that many pieces.
    """
    # SentencePiece itself would write the path of the file into the file. Its default of 16 threads stays, whatever the
    # machine: the scores of the pieces depend on their number.
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
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
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]
        raise ValueError(f"the corpus cannot be split into {pieces} pieces: {reason}") from error
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (MODEL_FILE + ".partial")
    partial.write_bytes(model.getvalue())
    partial.replace(folder / MODEL_FILE)
