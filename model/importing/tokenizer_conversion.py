"""Conversion of other projects' tokenizers to ours: the same pieces, but no text can become a control token."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from dragoman.bundle.tokenizers.library import LIBRARY_FILE, open_library, panics_as_errors, read_library
from dragoman.bundle.tokenizers.pieces import (
    SOURCE_FILE,
    VOCABULARY_FILE,
    open_pieces,
    read_vocabulary,
    write_vocabulary,
)
from dragoman.model.importing.tokenizer_files import TokenizerFolder

COVERAGE = 0.75
"""Least share of a SentencePiece model's pieces that its own vocabulary contains."""

UNREACHABLE = "\uffff"
"""Prefix for the name of a control token that text could otherwise match; no text contains this character."""


def check_coverage(path: Path, vocabulary: Mapping[str, int]) -> None:
    """Raise ValueError if a SentencePiece model and a vocabulary do not belong together."""
    model = open_pieces(path)
    pieces = [model.id_to_piece(number) for number in range(model.vocab_size()) if _is_text(model, number)]
    known = sum(piece in vocabulary for piece in pieces)
    if known < COVERAGE * len(pieces):
        raise ValueError(
            f"{path}: only {known} of its {len(pieces)} pieces are in the vocabulary, which belongs to another model"
        )


def _is_text(model: SentencePieceProcessor, number: int) -> bool:
    return not (model.is_control(number) or model.is_unknown(number) or model.is_unused(number))


def copy_pieces(path: Path, target: Path, special: Mapping[str, int], shift: int) -> dict[str, int]:
    """Copy a model whose ids, except `special`, are the checkpoint's less `shift`. Returns every control token."""
    model = open_pieces(path)
    shutil.copyfile(path, target / SOURCE_FILE)
    names = {model.id_to_piece(number): number for number in range(model.vocab_size())}
    control = {name: number + shift for name, number in names.items() if not _is_text(model, number)} | dict(special)
    pieces = {name: number + shift for name, number in names.items() if _is_text(model, number)}
    write_vocabulary(target / VOCABULARY_FILE, {**pieces, **control})
    return control


def copy_library(folder: TokenizerFolder, target: Path) -> dict[str, int]:
    """Copy a tokenizer.json without the parts that let text become a control token. Returns every control token."""
    path = folder.find(LIBRARY_FILE)
    content = folder.read(LIBRARY_FILE)
    return _write_library(content, folder, target, path)


def _write_library(content: dict[str, Any], folder: TokenizerFolder, target: Path, path: Path) -> dict[str, int]:
    try:
        added, vocabulary = content["added_tokens"], content["model"]["vocab"]
        scored = isinstance(vocabulary, list)
        ids = {piece: number for number, (piece, _) in enumerate(vocabulary)} if scored else vocabulary
        known = {**ids, **{token["content"]: token["id"] for token in added}}
        names = {token["content"] for token in added if token["special"]} | folder.special_tokens()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: must contain a model with its vocabulary, and added_tokens") from error
    control = {name: known[name] for name in names if name in known}
    if scored:
        # The library would match such pieces in text like any other.
        for name in control.keys() & ids.keys():
            vocabulary[ids[name]][0] = UNREACHABLE + name
    kept = [token for token in added if token["content"] not in control]
    stripped = {**content, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
    (target / LIBRARY_FILE).write_text(json.dumps(stripped, ensure_ascii=False) + "\n", encoding="utf-8")
    library = open_library(target / LIBRARY_FILE)
    for token in kept:
        if library.token_to_id(token["content"]) != token["id"]:
            raise ValueError(f"{path}: the added token {token['content']!r} cannot keep its id {token['id']}")
    return control


def as_processed(folder: TokenizerFolder, target: Path) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """The tokens that tokenizer.json puts before and after a text, and every control token."""
    path, content = _library_content(folder)
    library = read_library(path, json.dumps({**content, "truncation": None, "padding": None}))
    for number in range(library.get_vocab_size()):
        with panics_as_errors():
            found = library.encode(library.decode([number]))
        body = [index for index, special in enumerate(found.special_tokens_mask) if not special]
        if body:
            control = _write_library(content, folder, target, path)
            return tuple(found.ids[: body[0]]), tuple(found.ids[body[-1] + 1 :]), control
    raise ValueError(f"{path}: its vocabulary has no piece of text")


def _library_content(folder: TokenizerFolder) -> tuple[Path, dict[str, Any]]:
    """The source file and content of tokenizer.json, converted from the older files if there is none."""
    if folder.has(LIBRARY_FILE):
        return folder.find(LIBRARY_FILE), folder.read(LIBRARY_FILE)
    if folder.has("vocab.txt"):
        path, converted = folder.find("vocab.txt"), _word_pieces(folder)
    else:
        path, converted = folder.find("vocab.json"), _byte_pairs(folder)
    content: dict[str, Any] = json.loads(converted.to_str())
    return path, content


def _word_pieces(folder: TokenizerFolder) -> tokenizers.Tokenizer:
    """BERT's tokenizer, from vocab.txt."""
    lines = folder.find("vocab.txt").read_text(encoding="utf-8").split("\n")
    ids = {line: number for number, line in enumerate(lines) if line}
    unknown, first, last = (
        str(folder.setting(name, default))
        for name, default in (("unk_token", "[UNK]"), ("cls_token", "[CLS]"), ("sep_token", "[SEP]"))
    )
    tokenizer = tokenizers.Tokenizer(WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(folder.setting("tokenize_chinese_chars", True)),
        strip_accents=folder.settings.get("strip_accents"),
        lowercase=bool(folder.setting("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(name, id_of(name, ids, folder)) for name in (first, last)],
    )
    return tokenizer


def _byte_pairs(folder: TokenizerFolder) -> tokenizers.Tokenizer:
    """The tokenizer of BART and RoBERTa, from vocab.json and merges.txt."""
    ids = read_vocabulary(folder.find("vocab.json"))
    lines = folder.find("merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [(pair[0], pair[1]) for line in lines if len(pair := line.split(" ")) == 2 and pair[0] != "#version:"]
    tokenizer = tokenizers.Tokenizer(BPE(ids, merges))
    prefix = bool(folder.setting("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    first, last = (
        str(folder.setting(name, default)) for name, default in (("cls_token", "<s>"), ("sep_token", "</s>"))
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (last, id_of(last, ids, folder)), (first, id_of(first, ids, folder)), add_prefix_space=prefix
    )
    return tokenizer


def id_of(token: str, ids: Mapping[str, int], folder: TokenizerFolder) -> int:
    """The id of a required token. Raises ValueError if the vocabulary lacks it."""
    if token not in ids:
        raise ValueError(f"{folder.path}: the vocabulary has no {token}")
    return ids[token]
