"""Checkpoints small enough to be made by each test run, and texts for them.

Their output is meaningless, but as varied as a real one's: it has many lengths and words, end tokens occur, and every
step depends on the source and on all previous tokens.
"""

import dataclasses
import functools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers.native import MODEL_FILE, SentencePieceTokenizer
from dragoman.model.checkpoint import Checkpoint, load_checkpoint, own_weights, save_checkpoint
from dragoman.model.config import CheckpointConfig, TransformerConfig
from dragoman.model.greedy import Output, greedy
from dragoman.model.training.vocabulary import train_tokenizer
from dragoman.model.transformer import Transformer

# Such small products are slower on several cores than on one, above all on busy ones.
torch.set_num_threads(1)

PIECES = 340
"""The tokenizer's number of pieces, 256 of which are the bytes."""

TINY = TransformerConfig(
    PIECES,
    PIECES,
    d_model=32,
    heads=4,
    d_ff=64,
    encoder_layers=2,
    decoder_layers=2,
    max_positions=64,
    dropout=0.0,
    norm_order="pre",
    final_norm=True,
)
"""The default shape of a tiny checkpoint: pre-norm and one tied embedding, like the shipped model."""

PAPER = dataclasses.replace(TINY, norm_order="post", final_norm=False)
"""TINY in the paper's own order."""

LARGE = dataclasses.replace(
    TINY, source_vocabulary=20_000, target_vocabulary=20_000, encoder_layers=1, decoder_layers=1
)
"""A vocabulary large enough to notice a second copy of it."""

GATED = dataclasses.replace(
    TINY,
    key_width=12,
    norm_kind="rms",
    activation="gelu_tanh",
    gated=True,
    biases=False,
    position_kind="relative",
    relative_buckets=8,
    relative_distance=20,
    scale_embedding=False,
)
"""TINY with all of T5's differences from the paper."""

# fmt: off
WORDS = (
    "kite", "boat", "river", "stone", "tree", "bird", "dog", "house", "night", "day", "red", "blue", "small", "green",
    "old", "quick", "runs", "sings", "walks", "sleeps", "falls", "near", "under", "over", "the", "a", "été", "forêt",
    "déjà", "œuf",
)
# fmt: on


def sentences(count: int, seed: int = 0) -> list[str]:
    """Unique random sentences of 1 to 12 words, deterministic in the arguments."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 12))]
        found[" ".join(words).capitalize() + rng.choice(("", ".", "!", " 7."))] = None
    return list(found)


def tiny_tokenizer(folder: Path) -> SentencePieceTokenizer:
    """Write a tokenizer of PIECES pieces into `folder`, and read it from there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(_tokenizer_model())
    return SentencePieceTokenizer(folder)


@functools.cache
def _tokenizer_model() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer(sentences(300, seed=99), Path(folder), PIECES)
        return (Path(folder) / MODEL_FILE).read_bytes()


def tiny_rules(architecture: TransformerConfig = TINY) -> DecodingRules:
    """The rules that `dragoman train` gives a checkpoint with this tokenizer."""
    return DecodingRules(
        start_id=1,
        end_ids=(2,),
        pad_id=0,
        suppressed_ids=(0, 1, 3),
        max_source_tokens=architecture.max_positions,
        max_output_tokens=architecture.max_positions,
    )


def random_model(architecture: TransformerConfig = TINY, seed: int = 1, end_id: int = 2) -> Transformer:
    """A model in eval mode in which every weight matters: no bias is 0, no norm is the identity, attention is sharp."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(architecture)
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                nn.init.normal_(module.weight, mean=1.0, std=0.3)
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.bias, std=0.1)
            elif isinstance(module, nn.Linear) and module is not model.projection:
                module.weight.mul_(3.0 if name.endswith(("query", "key")) else 1.5)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        _vary_outputs(model, end_id)
    return model.eval()


def _vary_outputs(model: Transformer, end_id: int) -> None:
    """Keep the model from repeating one token, and let it end one step in ten."""
    size = model.config
    # With a tied embedding and positive gains in the last norm, a token's own logit would always be largest.
    last = [module for module in model.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)][-1]
    nn.init.normal_(last.weight, std=1.0)
    rows, width = 32, min(12, size.max_positions)
    source = torch.randint(4, size.source_vocabulary, (rows, width))
    target = torch.randint(4, size.target_vocabulary, (rows, width))
    lengths = torch.randint(1, width + 1, (rows,))
    words = model.projection.weight
    for _ in range(3):  # the embedding may be tied, so each round changes the measurements of the next
        hidden = model.decode(target, model.encode(source, lengths), lengths).flatten(0, 1)
        mean = hidden.mean(dim=0)
        words.sub_(torch.outer(words @ mean, mean) / (mean @ mean))
        logits = model.projection(hidden)
        words[end_id].div_((logits[:, end_id] / logits.max(dim=1).values).quantile(0.9))


def tiny_checkpoint(
    folder: Path, *, architecture: TransformerConfig = TINY, decoding: DecodingRules | None = None, seed: int = 1
) -> Checkpoint:
    """Write a float32 checkpoint of `architecture` (its vocabularies PIECES large) into `folder`, and read it back."""
    rules = decoding or tiny_rules(architecture)
    config = CheckpointConfig("tiny", "transformer", ("en",), ("fr",), architecture, rules)
    model = random_model(architecture, seed, rules.end_ids[0])
    with tempfile.TemporaryDirectory() as tokenizer_folder:
        tiny_tokenizer(Path(tokenizer_folder))
        save_checkpoint(folder, config, own_weights(model), Path(tokenizer_folder), torch.float32)
    return load_checkpoint(folder)


def clear_cut(checkpoint: Checkpoint, texts: Sequence[str], margin: float = 1e-3) -> dict[str, Output]:
    """The answers to those of `texts` whose every step has a margin above `margin`, each decoded alone.

    With a smaller margin, rounding may decide, and two correct decoders may differ.
    """
    answers = {}
    for text in texts:
        (output,) = greedy(checkpoint.model, checkpoint.config.decoding, [checkpoint.tokenizer.encode(text)])
        if min(output.margins) > margin:
            answers[text] = output
    return answers
