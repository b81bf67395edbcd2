"""What the JSON files of a Hugging Face folder say of its tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.bundle.json_files import read_object

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"

SPECIAL_SETTINGS = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")

USUAL_TOKENS = frozenset({"<s>", "</s>", "<unk>", "<pad>", "<mask>", "[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"})


class Folder:
    """What the tokenizer's files of a checkpoint say, and the little of its configuration that concerns them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self.read(CONFIG_FILE)
        # Where there is no such file, config.json has the rules of decoding as well.
        self.rules = _given(self.read(GENERATION_FILE)) if self.has(GENERATION_FILE) else self.config
        self.settings = self.read("special_tokens_map.json") | self.read("tokenizer_config.json")

    def find(self, *names: str) -> Path:
        """The first of those files that is there. Raises FileNotFoundError."""
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        raise FileNotFoundError(f"{self.path}: must hold {' or '.join(names)}")

    def has(self, *names: str) -> bool:
        """Whether all of those files are there."""
        return all((self.path / name).is_file() for name in names)

    def setting(self, name: str, otherwise: Any) -> Any:
        """A setting of tokenizer_config.json; a token is given by its text."""
        value = self.settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return otherwise if value is None else value

    def forced_id(self) -> int | None:
        """The first token of every output, whatever the model chooses, if the rules of decoding force one."""
        return self._token("forced_bos_token_id", self.rules.get("forced_bos_token_id"))

    def given_start_id(self) -> int | None:
        """What the decoder is fed first, if the files say."""
        name = "decoder_start_token_id"
        return self._token(name, self.rules.get(name, self.config.get(name)))

    def start_id(self, otherwise: int | None = None) -> int:
        """The same. Raises ValueError where it is neither given nor known `otherwise`."""
        found = self.given_start_id()
        found = otherwise if found is None else found
        if found is None:
            raise ValueError(f"{self.path / CONFIG_FILE}: decoder_start_token_id is missing")
        return found

    def prompt(self, otherwise: int | None = None) -> tuple[int, ...]:
        """What every output begins with, where no language has a say: `start_id`, and what is forced after it."""
        forced = self.forced_id()
        return (self.start_id(otherwise),) if forced is None else (self.start_id(otherwise), forced)

    def _token(self, name: str, value: Any) -> int | None:
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        if value is not None and not isinstance(value, int):
            raise ValueError(f"{self.path}: {name} must be one token, is {value!r}")
        return value

    def added_tokens(self) -> dict[str, int]:
        """Tokens beside the vocabulary and their ids, where the files list them."""
        found: dict[str, int] = dict(self.read("added_tokens.json"))
        for number, token in self.settings.get("added_tokens_decoder", {}).items():
            found[token["content"]] = int(number)
        return found

    def listed_tokens(self) -> list[str]:
        """Special tokens that the files list without an id, in their order."""
        for name in ("extra_special_tokens", "additional_special_tokens"):
            tokens = self.settings.get(name)
            if isinstance(tokens, list) and tokens:
                return [token if isinstance(token, str) else token["content"] for token in tokens]
        return []

    def special_tokens(self) -> set[str]:
        """What special tokens are called: by tokenizer_config.json, and where nothing is said."""
        named = {str(self.setting(name, "")) for name in SPECIAL_SETTINGS}
        return (named | set(self.listed_tokens()) | USUAL_TOKENS) - {""}

    def read(self, name: str) -> dict[str, Any]:
        """A file of JSON; nothing where it is missing. Raises ValueError with its name."""
        return read_object(self.path / name) or {}


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
