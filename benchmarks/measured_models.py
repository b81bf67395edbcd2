"""The two benchmark models: OPUS-MT's shape with random weights, and the shipped model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dragoman.bundle.manifest import Bundle
from dragoman.bundle.precision import Precision
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import Tokenizer
from dragoman.export.exporter import REDUCED, manifest_of
from dragoman.export.graph_writer import write_graphs, write_product
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.config import CheckpointConfig, TransformerConfig
from dragoman.model.transformer import Transformer

OPUS_SHAPE = TransformerConfig(58_101, 58_101, max_positions=512)
"""6+6 layers, d_model 512, d_ff 2048, 8 heads, post-norm, one tied embedding."""

SHIPPED = Path("model/pretrained/en-fr")


@dataclass(frozen=True)
class Measured:
    """Model with its decoding rules."""

    name: str
    model: Transformer
    rules: DecodingRules
    """Decoding rules with the model's own end tokens."""
    tokenizer: Tokenizer | None
    """None for random weights."""

    @property
    def endless(self) -> DecodingRules:
        """Rules with the end tokens suppressed, so that every output reaches its maximum length."""
        return replace(self.rules, suppressed_ids=(*self.rules.suppressed_ids, *self.rules.end_ids))


def opus_shape() -> Measured:
    """OPUS-MT's shape with random weights; the same at each call."""
    torch.manual_seed(1)
    rules = DecodingRules(start_id=0, end_ids=(1,), pad_id=0)
    return Measured("opus-shape", Transformer(OPUS_SHAPE).eval(), rules, tokenizer=None)


def shipped() -> Measured:
    """The checkpoint shipped with Dragoman."""
    checkpoint = load_checkpoint(SHIPPED)
    return Measured("en-fr", checkpoint.model, checkpoint.config.decoding, checkpoint.tokenizer)


MODELS: Mapping[str, Callable[[], Measured]] = {"opus-shape": opus_shape, "en-fr": shipped}


def write_bundle(folder: Path, model: Transformer, rules: DecodingRules, precision: Precision) -> Bundle:
    """Export without proof, for measurements only: the bundle is incomplete, but the engine runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    reduced = REDUCED[precision](model) if precision in REDUCED else model
    write_graphs(folder, reduced, rules, precision=precision)
    if precision == "int8":
        write_product(folder)
    config = CheckpointConfig(folder.name, "transformer", ("en",), ("fr",), model.config, rules)
    return Bundle(folder, manifest_of(config, precision, folder))
