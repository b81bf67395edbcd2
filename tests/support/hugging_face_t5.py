"""Tiny random checkpoints of T5 and mT5 with their tokenizers, made by transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.support.hugging_face_tokenizers import t5 as write_tokenizer

SHAPE: Mapping[str, Any] = {
    "d_model": 32,
    "num_heads": 4,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}

KINDS: Mapping[str, Mapping[str, Any]] = {
    "v1.0": {"feed_forward_proj": "relu"},
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "v1.1 with one table": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
    "mt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
UNTIED = ("v1.1", "mt5")


def make_t5(kind: str, folder: Path) -> Any:
    """Write a checkpoint's folder. Returns transformers' model.

    Every weight matters, attention is sharp, and outputs have many different tokens.
    """
    name = "MT5" if kind == "mt5" else "T5"
    tokenizer = write_tokenizer(folder)
    tasks = json.loads((folder / "config.json").read_text())["task_specific_params"]
    settings = {"vocab_size": len(tokenizer), "task_specific_params": tasks, **SHAPE, **KINDS[kind]}
    config = getattr(transformers, f"{name}Config")(**settings)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
        if kind in UNTIED:
            model.lm_head.weight = nn.Parameter(torch.randn(len(tokenizer), 32))
        for part, parameter in model.named_parameters():
            if "layer_norm" in part:
                parameter.normal_(1.0, 0.3)
            elif "relative_attention_bias" in part:
                parameter.normal_(0.0, 1.5)
            elif parameter.dim() == 2 and "shared" not in part and "lm_head" not in part:
                parameter.mul_(2.0)
        # With positive gains in the last norm, a token's own logit would always be largest. All kinds have logits of
        # the same magnitude: in float32, 1e-4 is a strict bound for logits of 30.
        model.decoder.final_layer_norm.weight.normal_(std=3.0 if kind == "v1.0" else 0.2)
        _vary_outputs(model, len(tokenizer))
    model.generation_config.max_length = 48
    model.save_pretrained(folder)
    return model


def _vary_outputs(model: Any, vocabulary: int) -> None:
    """Keep the model from repeating one token: remove the mean of all states from its output embedding."""
    words = model.lm_head.weight
    source = torch.randint(3, vocabulary, (24, 20))
    target = torch.randint(3, vocabulary, (24, 12))
    for _ in range(3):  # the table may be tied, so each round changes the measurements of the next
        states = model(input_ids=source, decoder_input_ids=target, output_hidden_states=True)
        mean = states.decoder_hidden_states[-1].flatten(0, 1).mean(dim=0)
        words.sub_(torch.outer(words @ mean, mean) / (mean @ mean))
