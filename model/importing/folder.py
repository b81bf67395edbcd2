"""The JSON files of a Hugging Face folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle.json_files import read_object
from dragoman.model.config import Activation

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
"""Names of activations in transformers, and our names."""


@dataclass(frozen=True)
class ModelFolder:
    """A Hugging Face folder without its weights and tokenizer, which other modules read."""

    path: Path

    config: Mapping[str, Any]
    """config.json."""

    generation: Mapping[str, Any] | None
    """generation_config.json; None in older folders, which have the same settings in config.json."""

    tokenizer: Mapping[str, Any]
    """tokenizer_config.json; empty if it is missing."""

    @classmethod
    def open(cls, path: Path) -> "ModelFolder":
        """Read the files. Raises FileNotFoundError without config.json, and ValueError for a file of anything else."""
        config = read_object(path / CONFIG_FILE)
        if config is None:
            raise FileNotFoundError(f"{path / CONFIG_FILE}: missing")
        return cls(path, config, read_object(path / GENERATION_FILE), read_object(path / TOKENIZER_CONFIG_FILE) or {})

    @property
    def model_type(self) -> str:
        """The architecture's name in transformers; empty if config.json has none."""
        return str(self.config.get("model_type", ""))

    @property
    def tokenizer_class(self) -> str:
        """The tokenizer's class in transformers; empty if neither configuration names one."""
        return str(self.tokenizer.get("tokenizer_class") or self.config.get("tokenizer_class") or "")

    def need(self, key: str) -> Any:
        """The value of `key` in config.json. Raises ValueError if it is missing."""
        value = self.config.get(key)
        if value is None:
            raise ValueError(f"{self.path / CONFIG_FILE}: {key} is missing")
        return value

    def need_same(self, *keys: str) -> Any:
        """The common value of `keys` in config.json. Raises ValueError if they differ."""
        values = [self.need(key) for key in keys]
        if any(value != values[0] for value in values):
            pairs = ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
            raise ValueError(f"{self.path / CONFIG_FILE}: {' and '.join(keys)} must be equal, are {pairs}")
        return values[0]


def activation(folder: ModelFolder, key: str) -> Activation:
    """Our name for the activation under `key` in config.json. Raises ValueError for an unknown one."""
    name = folder.need(key)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{folder.path / CONFIG_FILE}: {key} must be one of {known}, is {name!r}")
    return ACTIVATIONS[name]
