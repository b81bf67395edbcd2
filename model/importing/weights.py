"""Tensors of a Hugging Face folder, mapped rather than read; every one is accounted for."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from dragoman.bundle.json_files import read_json
from dragoman.model.checkpoint import empty_model, fill_model, own_weights, read_weights
from dragoman.model.config import TransformerConfig
from dragoman.model.transformer import Transformer

FILES = ("model.safetensors", "pytorch_model.bin")
"""Files with weights, in order of preference; for sharded weights, `NAME.index.json` lists the shards."""


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, in their stored types.

    Raises FileNotFoundError without weights or with a missing shard, and ValueError for a file that is damaged or could
    only be read by running code from it.
    """
    for name in FILES:
        if (folder / name).is_file():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index)
    raise FileNotFoundError(f"{folder}: has no weights, neither {' nor '.join(FILES)}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        shard_of: dict[str, str] = read_json(index)["weight_map"]
        shards = sorted(map(Path, set(shard_of.values())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: weight_map must map each tensor to its file") from error
    found: dict[str, Tensor] = {}
    for name in shards:
        path = index.parent / name
        if name.name != str(name):
            raise ValueError(f"{index}: {str(name)!r} is outside the folder")
        if not path.is_file():
            raise FileNotFoundError(f"{path}: missing; {index.name} lists it")
        found |= _read_file(path)
    lost = sorted(shard_of.keys() - found.keys())
    if lost:
        raise ValueError(f"{index}: {lost[0]} is missing from {shard_of[lost[0]]}")
    return found


def _read_file(path: Path) -> dict[str, Tensor]:
    return read_weights(path) if path.suffix == ".safetensors" else _read_pickled(path)


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """A file of `torch.save`, read by PyTorch's weights-only unpickler, which runs no code from the file."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except (UnpicklingError, RuntimeError, EOFError, OSError) as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        fault = f"it would run code, {code[1]}" if code else "it is damaged"
        raise ValueError(f"{path}: cannot be read as a file of tensors: {fault}") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(f"{path}: must contain tensors by name, and nothing else")
    for name, tensor in found.items():
        if tensor.layout != torch.strided or tensor.nbytes > tensor.untyped_storage().nbytes():
            # For example one number expanded to a billion, of which a copy would take all the memory.
            raise ValueError(f"{path}: {name} claims more numbers than the file has")
    return dict(found)


def _is_zip(path: Path) -> bool:
    """Whether the file is in the format that can be mapped; before version 1.6, PyTorch wrote another."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def as_it_is(tensor: Tensor) -> Tensor:
    """The same tensor."""
    return tensor


@dataclass(frozen=True)
class Part:
    """The source of a tensor of our model."""

    names: tuple[str, ...]
    """Its possible names in the file, in order of preference. If the file has several, they must be equal."""

    convert: Callable[[Tensor], Tensor] = as_it_is
    """Conversion of the file's tensor to ours."""


class Ledger(Mapping[str, Tensor]):
    """A file's tensors, with a record of those accounted for and of their faults."""

    def __init__(self, weights: Mapping[str, Tensor], where: str) -> None:
        self._weights = weights
        self._where = where
        self._seen: set[str] = set()
        self._faults: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        self._seen.add(name)
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def pass_over(self, name: str) -> None:
        """Record that a tensor, if it exists, is not used by the model."""
        self._seen.add(name)

    def take(self, part: Part, shape: Collection[int]) -> Tensor | None:
        """The tensor of a part. Records a fault if it is missing, has another shape, or differs between its names."""
        present = [name for name in part.names if name in self._weights]
        if not present:
            self._faults.append(f"{part.names[0]} is missing")
            return None
        first, *others = present
        tensor = part.convert(self[first])
        if tuple(tensor.shape) != tuple(shape):
            self._faults.append(f"{first} has shape {list(self[first].shape)}, should give {list(shape)}")
        for name in others:
            if not torch.equal(self[name], self[first]):
                self._faults.append(f"{name} differs from {first}, to which it is tied")
        return tensor

    def check_table(self, name: str, right: Tensor, first: int = 0) -> None:
        """Check an optional table [rows, D], which we compute ourselves: from row `first` on it must equal `right`."""
        if name not in self._weights:
            return
        found = self[name].float()
        rows = min(len(found), len(right))
        if found.shape[1:] != right.shape[1:] or not torch.allclose(found[first:rows], right[first:rows], atol=1e-3):
            self._faults.append(f"{name} is not this family's table of sinusoids")

    def close(self) -> None:
        """Raise ValueError naming each faulty tensor, and each that is not accounted for."""
        unknown = sorted(self._weights.keys() - self._seen)
        faults = self._faults + [f"{name} is not part of this architecture" for name in unknown]
        if faults:
            raise ValueError(f"{self._where}: {'; '.join(faults)}")


def build(config: TransformerConfig, parts: Mapping[str, Part], ledger: Ledger) -> Transformer:
    """A model with these weights, in eval mode; `parts` has an entry for each name of `own_weights`.

    Closes the ledger, and so raises its errors. Tensors that are float32 already stay mapped.
    """
    model = empty_model(config)
    taken = {name: ledger.take(parts[name], tensor.shape) for name, tensor in own_weights(model).items()}
    ledger.close()
    fill_model(model, {name: tensor for name, tensor in taken.items() if tensor is not None})
    return model
