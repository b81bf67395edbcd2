"""Checkpoints small enough to be made anew by each test run, and texts for them.

They translate nothing, but they do it in as many ways as a real one: outputs are of many lengths and words, an end
token comes up, and every step depends on the source and on all that came before.
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

# So small a product is slower on several cores than on one, above all where these are busy.
torch.set_num_threads(1)

PIECES = 340
"""Of the tokenizer; 256 of them are the bytes."""

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
"""The shape that a tiny checkpoint has unless another is asked for: pre-norm, one tied embedding, as what we train."""

PAPER = dataclasses.replace(TINY, norm_order="post", final_norm=False)
"""The same in the paper's own order."""

LARGE = dataclasses.replace(
    TINY, source_vocabulary=20_000, target_vocabulary=20_000, encoder_layers=1, decoder_layers=1
)
"""So many words that a second copy of them would show."""

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
"""The same with all in which T5 differs from the paper."""

# fmt: off
WORDS = (
    "kite", "boat", "river", "stone", "tree", "bird", "dog", "house", "night", "day", "red", "blue", "small", "green",
    "old", "quick", "runs", "sings", "walks", "sleeps", "falls", "near", "under", "over", "the", "a", "été", "forêt",
    "déjà", "œuf",
)
# fmt: on


def sentences(count: int, seed: int = 0) -> list[str]:
    """Made-up sentences of 1 to 12 words, no two alike; always the same for the same arguments."""
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
    """A model in eval mode whose every weight counts: no bias is 0, no norm is the identity, attention is sharp."""
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
    """Keep the model from saying the same word for ever, and let it end one step in ten."""
    size = model.config
    # With a tied embedding a token's own logit would always be largest, were all gains of the last norm positive.
    last = [module for module in model.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)][-1]
    nn.init.normal_(last.weight, std=1.0)
    rows, width = 32, min(12, size.max_positions)
    source = torch.randint(4, size.source_vocabulary, (rows, width))
    target = torch.randint(4, size.target_vocabulary, (rows, width))
    lengths = torch.randint(1, width + 1, (rows,))
    words = model.projection.weight
    for _ in range(3):  # the embedding may be tied, so each round moves what the next one measures
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
    """Those of `texts` where at each step the best logit beats the next by more than `margin`, with the answer.

    Each is decoded alone. Where it is closer, float noise may decide, and two right decoders may differ.
    """
    answers = {}
    for text in texts:
        (output,) = greedy(checkpoint.model, checkpoint.config.decoding, [checkpoint.tokenizer.encode(text)])
        if min(output.margins) > margin:
            answers[text] = output
    return answers
