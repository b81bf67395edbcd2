"""Small tokenizers of other families, written by transformers, which is the reference of their tests."""

import functools
import io
import json
import random
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import transformers
from tokenizers import pre_tokenizers, trainers
from transformers.models.nllb import tokenization_nllb

from tests.support.tiny import sentences

PIECES = 90
"""Number of pieces of each SentencePiece model here."""

TEXTS = tuple(sentences(400, seed=17))
FRENCH = tuple(text.swapcase() for text in TEXTS)
"""Random texts of another language, so that source and target have different pieces."""


@functools.cache
def pieces_model(
    kind: str = "unigram",
    texts: tuple[str, ...] = TEXTS,
    pad_id: int = -1,
    unk_id: int = 0,
    bos_id: int = 1,
    eos_id: int = 2,
) -> bytes:
    """A SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=PIECES,
        model_type=kind,
        minloglevel=2,
        pad_id=pad_id,
        unk_id=unk_id,
        bos_id=bos_id,
        eos_id=eos_id,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """The text pieces of a model."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(number) for number in range(PIECES) if processor.id_to_piece(number)[0] != "<"]


def write(path: Path, content: bytes | Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def shuffled(pieces: list[str], first: list[str], last: list[str]) -> dict[str, int]:
    """Ids in an order unrelated to the model's."""
    pieces = sorted(set(pieces))
    random.Random(3).shuffle(pieces)
    return {piece: number for number, piece in enumerate([*first, *pieces, *last])}


def marian(folder: Path, tags: tuple[str, ...] = (), separate: bool = False) -> Any:
    source, target = pieces_model(), pieces_model(texts=FRENCH)
    write(folder / "source.spm", source)
    write(folder / "target.spm", target)
    if separate:  # transformers decodes outputs correctly only if both vocabularies begin alike
        first = ["</s>", "<unk>", "<pad>"]
        write(folder / "vocab.json", shuffled(pieces_of(source), first, []))
        write(folder / "target_vocab.json", shuffled([*pieces_of(target), "unused"], first, []))
    else:
        tokens = ["</s>", "<unk>", *(f">>{tag}<<" for tag in tags)]
        write(folder / "vocab.json", shuffled(pieces_of(source) + pieces_of(target), tokens, ["<pad>"]))
    with warnings.catch_warnings(action="ignore"):  # it recommends sacremoses, which does not affect tokens
        tokenizer = transformers.MarianTokenizer(
            str(folder / "source.spm"),
            str(folder / "target.spm"),
            str(folder / "vocab.json"),
            target_vocab_file=str(folder / "target_vocab.json") if separate else None,
            source_lang="eng",
            target_lang="fra",
            separate_vocabs=separate,
        )
    return saved(tokenizer, folder, {"decoder_start_token_id": tokenizer.pad_token_id})


def m2m100(folder: Path) -> Any:
    model = pieces_model("bpe")
    write(folder / "sentencepiece.bpe.model", model)
    write(folder / "vocab.json", shuffled(pieces_of(model), ["<s>", "<pad>", "</s>", "<unk>"], []))
    tokenizer = transformers.M2M100Tokenizer(
        str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), src_lang="en", tgt_lang="fr"
    )
    return saved(tokenizer, folder, {"decoder_start_token_id": 2})


def from_pieces(name: str, file: str, model: bytes, folder: Path, config: Mapping[str, Any], **options: Any) -> Any:
    """A tokenizer of transformers from a SentencePiece model, which remains in the folder."""
    write(folder / file, model)
    write(folder / "config.json", config)
    return saved(getattr(transformers, name).from_pretrained(folder, **options), folder, config)


def saved(tokenizer: Any, folder: Path, config: Mapping[str, Any]) -> Any:
    tokenizer.save_pretrained(folder)
    write(folder / "config.json", config)
    return tokenizer


def nllb(folder: Path, legacy: bool = False) -> Any:
    model, config = pieces_model("bpe"), {"decoder_start_token_id": 2}
    codes = list(tokenization_nllb.FAIRSEQ_LANGUAGE_CODES)
    options = {"src_lang": "eng_Latn", "legacy_behaviour": legacy, "extra_special_tokens": codes}
    return from_pieces("NllbTokenizer", "sentencepiece.bpe.model", model, folder, config, **options)


def mbart(folder: Path) -> Any:
    options = {"src_lang": "en_XX", "tgt_lang": "fr_XX"}
    return from_pieces("MBartTokenizer", "sentencepiece.bpe.model", pieces_model(), folder, {}, **options)


def mbart50(folder: Path) -> Any:
    options, config = {"src_lang": "en_XX", "tgt_lang": "fr_XX"}, {"decoder_start_token_id": 2}
    return from_pieces("MBart50Tokenizer", "sentencepiece.bpe.model", pieces_model(), folder, config, **options)


def t5(folder: Path) -> Any:
    model = pieces_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    tasks = {
        f"translation_en_to_{code}": {"prefix": f"translate English to {name}: "}
        for code, name in (("de", "German"), ("fr", "French"))
    }
    config = {"decoder_start_token_id": 0, "task_specific_params": {"summarization": {"prefix": "sum: "}, **tasks}}
    return from_pieces("T5Tokenizer", "spiece.model", model, folder, config)


def pegasus(folder: Path) -> Any:
    model = pieces_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return from_pieces("PegasusTokenizer", "spiece.model", model, folder, {"decoder_start_token_id": 0})


def byte_pairs(name: str, folder: Path, config: Mapping[str, Any]) -> Any:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(TEXTS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    trained.model.save(str(folder))
    model = json.loads(trained.to_str())["model"]
    merges = [(left, right) for left, right in model["merges"]]
    return saved(getattr(transformers, name)(vocab=model["vocab"], merges=merges), folder, config)


def bart(folder: Path) -> Any:
    return byte_pairs("BartTokenizer", folder, {"decoder_start_token_id": 2, "forced_bos_token_id": 0})


def roberta(folder: Path) -> Any:
    return byte_pairs("RobertaTokenizer", folder, {})


def bert(folder: Path) -> Any:
    words = sorted({word.lower() for text in TEXTS for word in text.replace(".", "").replace("!", "").split()})
    letters = sorted(set("".join(words)))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters, *(f"##{each}" for each in letters), "."]
    write(folder / "vocab.txt", ("\n".join(dict.fromkeys(pieces)) + "\n").encode())
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return saved(transformers.BertTokenizer(vocab=vocabulary), folder, {})


TOKENIZERS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "marian": ("marian", marian),
    "marian, several targets": ("marian", functools.partial(marian, tags=("fra", "pt_br", "cmn_Hans"))),
    "marian, two vocabularies": ("marian", functools.partial(marian, separate=True)),
    "m2m100": ("m2m100", m2m100),
    "nllb": ("nllb", nllb),
    "nllb, legacy": ("nllb", functools.partial(nllb, legacy=True)),
    "mbart": ("mbart", mbart),
    "mbart50": ("mbart", mbart50),
    "bart": ("bart", bart),
    "t5": ("t5", t5),
    "pegasus": ("pegasus", pegasus),
    "roberta": ("roberta", roberta),
    "bert": ("bert", bert),
}
"""For each kind, its family and a function that writes its files and returns transformers' tokenizer."""
