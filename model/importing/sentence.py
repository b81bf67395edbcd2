"""What sentence-transformers keeps beside an encoder: how many tokens it reads, and how they become one vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle.json_files import read_json
from dragoman.bundle.rules import EmbeddingRules, PoolingKind

MODULES_FILE = "modules.json"
TRANSFORMER_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"

POOLINGS: Mapping[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class SentenceRules:
    """What a folder says of its vectors."""

    embedding: EmbeddingRules
    max_tokens: int | None = None
    """The longest text; None where it does not say."""


def read_sentence_rules(folder: Path) -> SentenceRules:
    """The rules of a folder; those that any encoder has, where it is not of sentence-transformers.

    Raises ValueError that names the file and what is not supported in it.
    """
    if not (folder / MODULES_FILE).is_file():
        return SentenceRules(EmbeddingRules())
    pooling: PoolingKind = "mean"
    normalize = False
    for module in _read(folder / MODULES_FILE):
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _pooling(folder / module["path"] / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer" or module["path"]:
            raise ValueError(f"{folder / MODULES_FILE}: module {kind} at {module['path']!r} is not supported")
    return SentenceRules(EmbeddingRules(pooling, normalize), _max_tokens(folder))


def _pooling(path: Path) -> PoolingKind:
    modes = [name for name, value in _read(path).items() if name.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(f"{path}: pooling must be one of {', '.join(POOLINGS)}, is {' and '.join(modes) or 'none'}")
    return POOLINGS[modes[0]]


def _max_tokens(folder: Path) -> int | None:
    """And a check of what would change the text before it is cut into tokens."""
    prompts = folder / PROMPTS_FILE
    if prompts.is_file() and _read(prompts).get("default_prompt_name"):
        raise ValueError(f"{prompts}: default_prompt_name is not supported, words before each text are the caller's")
    path = folder / TRANSFORMER_FILE
    if not path.is_file():
        return None
    said = _read(path)
    if said.get("do_lower_case"):
        raise ValueError(f"{path}: do_lower_case is not supported")
    most: int | None = said.get("max_seq_length")
    return most


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError as error:
        raise ValueError(f"{path}: missing") from error
