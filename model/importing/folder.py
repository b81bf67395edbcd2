"""What the JSON files of a Hugging Face folder say."""

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
"""transformers' names of activations, and ours."""


@dataclass(frozen=True)
class ModelFolder:
    """A Hugging Face folder; its weights and tokenizer are read elsewhere."""

    path: Path

    config: Mapping[str, Any]
    """config.json."""

    generation: Mapping[str, Any] | None
    """generation_config.json; None in older folders, whose config.json says the same things."""

    tokenizer: Mapping[str, Any]
    """tokenizer_config.json; empty where there is none."""

    @classmethod
    def open(cls, path: Path) -> "ModelFolder":
        """Raises FileNotFoundError without config.json, and ValueError for a file that is not a JSON object."""
        config = read_object(path / CONFIG_FILE)
        if config is None:
            raise FileNotFoundError(f"{path / CONFIG_FILE}: missing")
        return cls(path, config, read_object(path / GENERATION_FILE), read_object(path / TOKENIZER_CONFIG_FILE) or {})

    @property
    def model_type(self) -> str:
        """What transformers calls the architecture; empty where config.json does not say."""
        return str(self.config.get("model_type", ""))

    @property
    def tokenizer_class(self) -> str:
        """What transformers calls the tokenizer; empty where tokenizer_config.json does not say."""
        return str(self.tokenizer.get("tokenizer_class") or self.config.get("tokenizer_class") or "")

    def need(self, key: str) -> Any:
        """What config.json has under `key`. Raises ValueError where there is nothing."""
        value = self.config.get(key)
        if value is None:
            raise ValueError(f"{self.path / CONFIG_FILE}: {key} is missing")
        return value

    def need_same(self, *keys: str) -> Any:
        """What config.json has under each of `keys`. Raises ValueError where that is not one value."""
        values = [self.need(key) for key in keys]
        if any(value != values[0] for value in values):
            pairs = ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
            raise ValueError(f"{self.path / CONFIG_FILE}: {' and '.join(keys)} must be equal here, are {pairs}")
        return values[0]


def activation(folder: ModelFolder, key: str) -> Activation:
    """Our name for what config.json has under `key`. Raises ValueError for one that we do not have."""
    name = folder.need(key)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{folder.path / CONFIG_FILE}: {key} must be one of {known}, is {name!r}")
    return ACTIVATIONS[name]
