"""Cost of importing a Hugging Face folder: elapsed time, processor time and peak memory up to the first answer.

    python -m benchmarks.quality.imports [--shape opus-mt|nllb-600m] [--keep FOLDER]

The checkpoints have random weights in the shapes of OPUS-MT (75 M parameters) and NLLB-200-distilled-600M. Each step
runs in a process of its own; its peak is the kernel's figure for resident memory, mapped files included.
"""

import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from benchmarks.server_process import server_process
from dragoman.client import Client

TEXTS = ("kite", "a boat on the river", "small stone", "one more line of words")

LAYERS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "encoder_attn": ("q_proj", "k_proj", "v_proj", "out_proj"),
}
"""Linear maps of a layer's attentions; an encoder layer has only the first attention."""


@dataclass(frozen=True)
class Shape:
    """Configuration and vocabulary size of a checkpoint."""

    config: dict[str, Any]
    pieces: int
    """Pieces of the tokenizer, control pieces included."""


SHAPES = {
    "opus-mt": Shape(
        {
            "model_type": "marian",
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "activation_function": "swish",
            "max_position_embeddings": 512,
            "vocab_size": 58101,
            "scale_embedding": True,
            "pad_token_id": 58100,
            "decoder_start_token_id": 58100,
            "eos_token_id": 0,
        },
        58101,
    ),
    "nllb-600m": Shape(
        {
            "model_type": "m2m_100",
            "d_model": 1024,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 16,
            "decoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "decoder_ffn_dim": 4096,
            "activation_function": "relu",
            "max_position_embeddings": 1024,
            "vocab_size": 256206,
            "scale_embedding": True,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "decoder_start_token_id": 2,
            "eos_token_id": 2,
        },
        256000,
    ),
}


def write_checkpoint(shape: Shape, folder: Path) -> int:
    """Write a checkpoint folder with two shards; returns the size of its weights in bytes."""
    folder.mkdir(parents=True)
    config = shape.config
    (folder / "config.json").write_text(json.dumps(config))
    ends = {name: config[name] for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    (folder / "generation_config.json").write_text(json.dumps({**ends, "max_length": 200}))
    if config["model_type"] == "marian":
        model, names = _pieces(shape.pieces)
        for name in ("source.spm", "target.spm"):
            (folder / name).write_bytes(model)
        ids = ["</s>", "<unk>", *names[3:], "<pad>"]
        (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(ids)}))
        settings: dict[str, Any] = {"source_lang": "en", "target_lang": "fr"}
    else:
        (folder / "sentencepiece.bpe.model").write_bytes(_pieces(shape.pieces)[0])
        settings = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": ["eng_Latn", "fra_Latn"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return _write_weights(config, folder)


def _pieces(count: int) -> tuple[bytes, list[str]]:
    """Serialized SentencePiece model of `count` random pieces, and their names."""
    rng = random.Random(0)
    letters = string.ascii_lowercase
    names = {"<unk>": None, "<s>": None, "</s>": None, "\u2581": None} | dict.fromkeys(letters)
    while len(names) < count:
        word = "".join(rng.choices(letters, k=rng.randint(2, 8)))
        names[rng.choice(("\u2581", "")) + word] = None
    messages: Any = sentencepiece_model_pb2  # the generated module has no types
    model = messages.ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.normalizer_spec.name = "identity"
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    for number, name in enumerate(names):
        model.pieces.add(piece=name, score=-number / count - len(name) % 3, type=kinds.get(name, 1))
    return model.SerializeToString(), list(names)


def _write_weights(config: dict[str, Any], folder: Path) -> int:
    generator = torch.Generator().manual_seed(0)
    shards: dict[str, str] = {}
    size = 0
    # Without a large embedding, the best logits would lie too close together.
    embedding = torch.randn(config["vocab_size"], config["d_model"], generator=generator) * 0.3
    for number, stack in enumerate(("encoder", "decoder")):
        shard = f"model-{number + 1:05}-of-00002.safetensors"
        tensors = dict(_stack(config, stack, generator))
        if number == 0:
            tensors["model.shared.weight"] = embedding
        save_file(tensors, folder / shard)
        shards |= dict.fromkeys(tensors, shard)
        size += sum(4 * tensor.numel() for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return size


def _stack(config: dict[str, Any], stack: str, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    width, inner = config["d_model"], config[f"{stack}_ffn_dim"]

    def linear(name: str, rows: int, columns: int) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", torch.randn(rows, columns, generator=generator) * columns**-0.5
        yield f"{name}.bias", torch.randn(rows, generator=generator) * 0.1

    def norm(name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", torch.ones(width)
        yield f"{name}.bias", torch.zeros(width)

    attentions = list(LAYERS)[: 1 if stack == "encoder" else 2]
    for index in range(config[f"{stack}_layers"]):
        layer = f"model.{stack}.layers.{index}"
        for attention in attentions:
            for part in LAYERS[attention]:
                yield from linear(f"{layer}.{attention}.{part}", width, width)
            yield from norm(f"{layer}.{attention}_layer_norm")
        yield from linear(f"{layer}.fc1", inner, width)
        yield from linear(f"{layer}.fc2", width, inner)
        yield from norm(f"{layer}.final_layer_norm")
    if config["model_type"] == "m2m_100":
        yield from norm(f"model.{stack}.layer_norm")


@dataclass(frozen=True)
class Cost:
    """Cost of one step."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def run(command: list[str]) -> Cost:
    """Run a `dragoman` command and measure it. Raises RuntimeError if it fails."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "dragoman.service.cli", *command], stderr=subprocess.DEVNULL)
    _pid, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"dragoman {' '.join(command)}: exited with status {os.waitstatus_to_exitcode(status)}")
    return Cost(time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def first_answer(bundle: Path) -> Cost:
    """Cost from the start of a server to its first translation; the memory is the server's at that time."""
    start = time.monotonic()
    with server_process(bundle) as server, Client(server.address) as client:
        client.translate([TEXTS[0]], source="en", to="fr")
        return Cost(time.monotonic() - start, server.cpu_seconds(), server.resident_bytes())


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    with nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@click.command()
@click.option("--shape", "name", type=click.Choice(list(SHAPES)), default="opus-mt", show_default=True)
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), help="Folder in which checkpoint and bundle are kept."
)
def main(name: str, keep: Path | None) -> None:
    """Create a random checkpoint, export it, verify the bundle, serve it and translate one text."""
    with _folder(keep) as folder:
        size = write_checkpoint(SHAPES[name], folder / "checkpoint")
        texts = folder / "texts.txt"
        texts.write_text("\n".join(TEXTS) + "\n")
        bundle = str(folder / "bundle")
        click.echo(f"{name}: {size / 2**30:.2f} GiB of float32 weights, {len(TEXTS)} texts")
        click.echo("| step | seconds | of a processor | peak GiB | of the weights |")
        click.echo("|---|---:|---:|---:|---:|")
        for step, cost in {
            "export": run(["export", "--texts", str(texts), str(folder / "checkpoint"), bundle]),
            "verify": run(["verify", bundle]),
            "serve, first answer": first_answer(Path(bundle)),
        }.items():
            memory = f"{cost.peak_bytes / 2**30:.2f} | {cost.peak_bytes / size:.2f}"
            click.echo(f"| {step} | {cost.seconds:.1f} | {cost.processor_seconds:.1f} | {memory} |")


if __name__ == "__main__":
    main()
