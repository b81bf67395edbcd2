"""Tensors of a Hugging Face folder, mapped rather than read, and not one of them left to chance."""

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
"""Where weights may lie, the first choice first; where they are sharded, `NAME.index.json` lists the shards."""


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, in the types they are stored in.

    Raises FileNotFoundError where there are none or a shard is missing, ValueError for a file that is damaged or would
    have to be run to be read.
    """
    for name in FILES:
        if (folder / name).is_file():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index)
    raise FileNotFoundError(f"{folder}: holds no weights, neither {' nor '.join(FILES)}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        shard_of: dict[str, str] = read_json(index)["weight_map"]
        shards = sorted(map(Path, set(shard_of.values())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: must map each tensor to its file under weight_map") from error
    found: dict[str, Tensor] = {}
    for name in shards:
        path = index.parent / name
        if name.name != str(name):
            raise ValueError(f"{index}: {str(name)!r} lies outside the folder")
        if not path.is_file():
            raise FileNotFoundError(f"{path}: missing; {index.name} lists it")
        found |= _read_file(path)
    lost = sorted(shard_of.keys() - found.keys())
    if lost:
        raise ValueError(f"{index}: {lost[0]} is not in {shard_of[lost[0]]}, where it should be")
    return found


def _read_file(path: Path) -> dict[str, Tensor]:
    return read_weights(path) if path.suffix == ".safetensors" else _read_pickled(path)


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """A file of `torch.save`, read by PyTorch's own unpickler, which makes tensors and values and runs nothing."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except (UnpicklingError, RuntimeError, EOFError, OSError) as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        fault = f"it asks for {code[1]}, which would be code to run" if code else "it is damaged"
        raise ValueError(f"{path}: not a file of tensors that can be read: {fault}") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(f"{path}: must hold tensors by name, and nothing else")
    for name, tensor in found.items():
        if tensor.layout != torch.strided or tensor.nbytes > tensor.untyped_storage().nbytes():
            # Such as one number that stands for a thousand million: a copy of it would take their memory.
            raise ValueError(f"{path}: {name} claims more numbers than the file holds of it")
    return dict(found)


def _is_zip(path: Path) -> bool:
    """Whether it is in the format that can be mapped; PyTorch wrote another before version 1.6."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def as_it_is(tensor: Tensor) -> Tensor:
    """The same tensor."""
    return tensor


@dataclass(frozen=True)
class Part:
    """Where a tensor of our model comes from."""

    names: tuple[str, ...]
    """What the file may call it, the first choice first. Where it has several, they must be equal."""

    convert: Callable[[Tensor], Tensor] = as_it_is
    """From the file's tensor to ours."""


class Ledger(Mapping[str, Tensor]):
    """A file's tensors, with a note of which were accounted for, and a list of what is wrong with them."""

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
        """Note that a tensor, if it is there, has no part in the model."""
        self._seen.add(name)

    def take(self, part: Part, shape: Collection[int]) -> Tensor | None:
        """The tensor of a part, if it is there, of this shape, and the same under all its names; a fault otherwise."""
        there = [name for name in part.names if name in self._weights]
        if not there:
            self._faults.append(f"{part.names[0]} is missing")
            return None
        first, *others = there
        tensor = part.convert(self[first])
        if tuple(tensor.shape) != tuple(shape):
            self._faults.append(f"{first} has shape {list(self[first].shape)}, should give {list(shape)}")
        for name in others:
            if not torch.equal(self[name], self[first]):
                self._faults.append(f"{name} differs from {first}, with which it is tied")
        return tensor

    def check_table(self, name: str, right: Tensor, first: int = 0) -> None:
        """A table [rows, D] that need not be there, since we compute it; where it is, it must be so from `first` on."""
        if name not in self._weights:
            return
        found = self[name].float()
        rows = min(len(found), len(right))
        if found.shape[1:] != right.shape[1:] or not torch.allclose(found[first:rows], right[first:rows], atol=1e-3):
            self._faults.append(f"{name} is not the table of sinusoids that this family has")

    def close(self) -> None:
        """Raises ValueError that names each tensor at fault, and each that nobody asked for."""
        unknown = sorted(self._weights.keys() - self._seen)
        faults = self._faults + [f"{name} is not part of this architecture" for name in unknown]
        if faults:
            raise ValueError(f"{self._where}: {'; '.join(faults)}")


def build(config: TransformerConfig, parts: Mapping[str, Part], ledger: Ledger) -> Transformer:
    """The model of this shape with its weights, in eval mode; `parts` has one entry for each name of `own_weights`.

    Closes the ledger, and raises what that raises. Tensors that are float32 already stay mapped.
    """
    model = empty_model(config)
    taken = {name: ledger.take(parts[name], tensor.shape) for name, tensor in own_weights(model).items()}
    ledger.close()
    fill_model(model, {name: tensor for name, tensor in taken.items() if tensor is not None})
    return model
