"""Native checkpoints: a folder of config.json, weights.safetensors and tokenizer/."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import Tokenizer, open_tokenizer
from dragoman.model.config import CheckpointConfig, TransformerConfig
from dragoman.model.folders import replacing
from dragoman.model.transformer import Transformer

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "weights.safetensors"
TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class Checkpoint:
    """A model with everything needed to run it."""

    config: CheckpointConfig
    model: Transformer
    tokenizer: Tokenizer


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a native checkpoint; weights of any floating type become float32, the model is in eval mode.

    Raises FileNotFoundError for a missing file, and ValueError naming each missing, unknown or misshapen tensor, or
    the invalid field of config.json.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: missing; a checkpoint has {CONFIG_FILE} and {WEIGHTS_FILE}")
    config = CheckpointConfig.load(folder / CONFIG_FILE)
    tokenizer = open_tokenizer(folder / TOKENIZER_FOLDER)
    for name, rows, pieces in (
        ("source_vocabulary", config.architecture.source_vocabulary, tokenizer.vocabulary),
        ("target_vocabulary", config.architecture.target_vocabulary, tokenizer.target_vocabulary),
    ):
        if pieces != rows:
            raise ValueError(f"{folder}: {name} must be the tokenizer's {pieces} pieces, is {rows}")
    check_prompts(config.decoding, tokenizer, where=str(folder))
    model = empty_model(config.architecture)
    weights = read_weights(folder / WEIGHTS_FILE)
    check_weights(model, weights, where=str(folder / WEIGHTS_FILE))
    fill_model(model, weights)
    return Checkpoint(config, model, tokenizer)


def check_prompts(rules: DecodingRules, tokenizer: Tokenizer, where: str) -> None:
    """Raise ValueError, prefixed by `where`, unless the tokenizer's prompts have the length in the rules.

    If all prompts begin with the same token, that must be the rules' start token.
    """
    prompts = [tokenizer.prompt(language) for language in tokenizer.target_languages or ("",)]
    lengths, first = {len(prompt) for prompt in prompts}, {prompt[0] for prompt in prompts}
    if lengths != {rules.prompt_tokens}:
        found = ", ".join(map(str, sorted(lengths)))
        raise ValueError(f"{where}: decoding.prompt_tokens must be the tokenizer's {found}, is {rules.prompt_tokens}")
    if len(first) == 1 and rules.start_id not in first:
        raise ValueError(f"{where}: decoding.start_id must be the tokenizer's {first.pop()}, is {rules.start_id}")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped rather than read. Raises ValueError for any other file."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: not a complete safetensors file: {error}") from error


def empty_model(config: TransformerConfig) -> Transformer:
    """A model in eval mode whose weights have shapes but no memory yet."""
    with torch.device("meta"):
        return Transformer(config).eval()


def fill_model(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Give an `empty_model` these weights as float32, under the names of `own_weights`; tied weights stay tied.

    Tensors that are float32 already are not copied.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    filled = {parameter: nn.Parameter(weights[name].float()) for parameter, name in names.items()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, filled[parameter])


def load_weights(model: Transformer, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy `weights` into the model. Raises the errors of `check_weights`."""
    check_weights(model, weights, where)
    with torch.no_grad():
        for name, tensor in own_weights(model).items():
            tensor.copy_(weights[name])


def check_weights(model: Transformer, weights: Mapping[str, Tensor], where: str) -> None:
    """Raise ValueError, prefixed by `where`, naming each missing, unknown or misshapen tensor."""
    expected = own_weights(model)
    faults = [f"{name} is missing" for name in sorted(expected.keys() - weights.keys())]
    faults += [f"{name} is not part of this architecture" for name in sorted(weights.keys() - expected.keys())]
    faults += [
        f"{name} has shape {list(weights[name].shape)}, should have {list(expected[name].shape)}"
        for name in sorted(expected.keys() & weights.keys())
        if weights[name].shape != expected[name].shape
    ]
    if faults:
        raise ValueError(f"{where}: {'; '.join(faults)}")


def own_weights(model: Transformer) -> dict[str, Tensor]:
    """The model's parameters without duplicates: a tied tensor has its first name only."""
    return {name: parameter.data for name, parameter in model.named_parameters()}


def save_checkpoint(
    folder: Path,
    config: CheckpointConfig,
    weights: Mapping[str, Tensor],
    tokenizer_folder: Path,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write a native checkpoint; `folder` is never half-written.

    `weights` have the names of `own_weights`, and are stored as `dtype`. Other files in `folder`, such as a model card,
    are kept. Raises ValueError, and leaves `folder` unchanged, if a tensor is not finite as `dtype`.
    """
    stored = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}
    broken = [name for name, tensor in stored.items() if not tensor.isfinite().all()]
    if broken:
        raise ValueError(f"{', '.join(broken)}: must be finite as {dtype} to be saved")
    with replacing(folder) as new_folder:
        if folder.exists():
            shutil.copytree(folder, new_folder, dirs_exist_ok=True)
        config.save(new_folder / CONFIG_FILE)
        # Not by save_file, whose files only their owner can read.
        (new_folder / WEIGHTS_FILE).write_bytes(save(stored))
        shutil.copytree(tokenizer_folder, new_folder / TOKENIZER_FOLDER, dirs_exist_ok=True)
