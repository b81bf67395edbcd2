"""The files of sentence-transformers beside an encoder: its longest text, and the way from tokens to one vector."""

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
    """A folder's rules for vectors."""

    embedding: EmbeddingRules
    max_tokens: int | None = None
    """The longest text; None if the folder sets no limit."""


def read_sentence_rules(folder: Path) -> SentenceRules:
    """The rules of a folder; the default rules if it is not one of sentence-transformers.

    Raises ValueError with the file's path and its unsupported setting.
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
    """Maximum length of a text in tokens, None if not set. Raises ValueError for settings that alter texts."""
    prompts = folder / PROMPTS_FILE
    if prompts.is_file() and _read(prompts).get("default_prompt_name"):
        raise ValueError(f"{prompts}: default_prompt_name is not supported; callers add words before a text themselves")
    path = folder / TRANSFORMER_FILE
    if not path.is_file():
        return None
    settings = _read(path)
    if settings.get("do_lower_case"):
        raise ValueError(f"{path}: do_lower_case is not supported")
    max_tokens: int | None = settings.get("max_seq_length")
    return max_tokens


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError as error:
        raise ValueError(f"{path}: missing") from error
