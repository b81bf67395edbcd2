"""The tokenizer's JSON files in a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.bundle.json_files import read_object

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"

SPECIAL_SETTINGS = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")

USUAL_TOKENS = frozenset({"<s>", "</s>", "<unk>", "<pad>", "<mask>", "[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"})


class TokenizerFolder:
    """The tokenizer's files of a checkpoint, and the parts of its configuration that concern the tokenizer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self.read(CONFIG_FILE)
        # Older folders have no such file; their decoding rules are in config.json.
        self.rules = _given(self.read(GENERATION_FILE)) if self.has(GENERATION_FILE) else self.config
        self.settings = self.read("special_tokens_map.json") | self.read("tokenizer_config.json")

    def find(self, *names: str) -> Path:
        """The first of these files that exists. Raises FileNotFoundError."""
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        raise FileNotFoundError(f"{self.path}: must contain {' or '.join(names)}")

    def has(self, *names: str) -> bool:
        """Whether all of these files exist."""
        return all((self.path / name).is_file() for name in names)

    def setting(self, name: str, default: Any) -> Any:
        """A setting of tokenizer_config.json; for a token, its text."""
        value = self.settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return default if value is None else value

    def forced_id(self) -> int | None:
        """The first token of every output, whatever the model chooses, if the decoding rules force one."""
        return one_id(self.path, "forced_bos_token_id", self.rules.get("forced_bos_token_id"))

    def given_start_id(self) -> int | None:
        """The decoder's first input, if the files name it."""
        name = "decoder_start_token_id"
        return one_id(self.path, name, self.rules.get(name, self.config.get(name)))

    def start_id(self, default: int | None = None) -> int:
        """The decoder's first input. Raises ValueError if the files do not name it and there is no `default`."""
        found = self.given_start_id()
        found = default if found is None else found
        if found is None:
            raise ValueError(f"{self.path / CONFIG_FILE}: decoder_start_token_id is missing")
        return found

    def prompt(self, default: int | None = None) -> tuple[int, ...]:
        """The prompt of every output in a model without language tokens: `start_id`, and a forced token after it."""
        forced = self.forced_id()
        return (self.start_id(default),) if forced is None else (self.start_id(default), forced)

    def added_tokens(self) -> dict[str, int]:
        """Tokens outside the vocabulary and their ids, if the files list them."""
        found: dict[str, int] = dict(self.read("added_tokens.json"))
        for number, token in self.settings.get("added_tokens_decoder", {}).items():
            found[token["content"]] = int(number)
        return found

    def listed_tokens(self) -> list[str]:
        """Special tokens that the files list without an id, in order."""
        for name in ("extra_special_tokens", "additional_special_tokens"):
            tokens = self.settings.get(name)
            if isinstance(tokens, list) and tokens:
                return [token if isinstance(token, str) else token["content"] for token in tokens]
        return []

    def special_tokens(self) -> set[str]:
        """The names of special tokens: those in tokenizer_config.json, and the usual ones."""
        named = {str(self.setting(name, "")) for name in SPECIAL_SETTINGS}
        return (named | set(self.listed_tokens()) | USUAL_TOKENS) - {""}

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file, empty if it is missing. Raises ValueError with its path."""
        return read_object(self.path / name) or {}


def one_id(path: Path, name: str, value: Any) -> int | None:
    """The token id that is the value of setting `name`, alone or in a list. Raises ValueError with `path`."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{path}: {name} must be one token, is {value!r}")
    return value


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
