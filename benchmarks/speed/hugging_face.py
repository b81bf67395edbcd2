"""transformers (PyTorch in eager mode) and optimum-onnx as peers, with the same weights in float32.

Both run `generate` of transformers. Two of its architectures match ours: Marian with post-norm, Pegasus with pre-norm.
Their position tables order the same sines and cosines differently, and are replaced by ours.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

from benchmarks.speed.contenders import ROWS
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.runtime import onnxruntime
from dragoman.model.config import TransformerConfig
from dragoman.model.greedy import pad
from dragoman.model.transformer import Transformer

LAYER_NAMES = {
    "self_attention.query": "self_attn.q_proj",
    "self_attention.key": "self_attn.k_proj",
    "self_attention.value": "self_attn.v_proj",
    "self_attention.output": "self_attn.out_proj",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_residual.norm": "final_layer_norm",
}
"""Names of a layer's parts in transformers, by our names."""


class HuggingFace:
    """Greedy decoding by `generate` of a transformers or optimum model. See `Contender`."""

    def __init__(self, model: Any, rules: DecodingRules) -> None:
        self._model = model
        self._rules = rules
        # The end token is suppressed by each call's minimum length instead.
        self._suppressed = [token for token in rules.suppressed_ids if token not in rules.end_ids]

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """See `Contender`."""
        return self._generate(sources, min_new_tokens=steps, max_new_tokens=steps)

    def outputs(self, sources: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See `Contender`."""
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        outputs: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), ROWS):
            batch = order[start : start + ROWS]
            rows = self._generate([sources[index] for index in batch], min_new_tokens=0, max_new_tokens=max_tokens)
            for index, row in zip(batch, rows, strict=True):
                outputs[index] = self._up_to_end(row)
        return outputs

    @torch.inference_mode()
    def _generate(self, sources: Sequence[Sequence[int]], min_new_tokens: int, max_new_tokens: int) -> list[list[int]]:
        ids, lengths = pad(sources, self._rules.pad_id)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        generated = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=1,
            do_sample=False,
            min_new_tokens=min_new_tokens,
            max_new_tokens=max_new_tokens,
            suppress_tokens=self._suppressed or None,
        )
        rows: list[list[int]] = generated[:, 1:].tolist()
        return rows

    def _up_to_end(self, row: list[int]) -> list[int]:
        end = next((at for at, token in enumerate(row) if token in self._rules.end_ids), len(row))
        return row[: end + 1]


def open_transformers(model: Any, rules: DecodingRules, threads: int) -> HuggingFace:
    """Contender of a model from `rebuild`, in eager mode. Sets the thread count of the whole process."""
    torch.set_num_threads(threads)
    return HuggingFace(model, rules)


def export_optimum(model: Any, folder: Path) -> None:
    """Export a model from `rebuild` with optimum-onnx."""
    from optimum.exporters.onnx import onnx_export_from_model

    with warnings.catch_warnings():
        # Tracing warns of every branch that it treats as constant; the token comparison checks the result.
        warnings.simplefilter("ignore")
        onnx_export_from_model(model, folder, task="text2text-generation-with-past", do_validation=False)
    model.config.save_pretrained(folder)


def open_optimum(folder: Path, rules: DecodingRules, threads: int) -> HuggingFace:
    """Contender of an export by `export_optimum`, on ONNX Runtime."""
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, provider="CPUExecutionProvider", session_options=options)
    return HuggingFace(model, rules)


def rebuild(model: Transformer, rules: DecodingRules) -> Any:
    """Rebuild the model as a transformers class. Raises ValueError if no class computes the same function."""
    config = model.config
    theirs = _empty(config, rules)
    weights = {"model.shared.weight": model.source_embedding.tokens.weight}
    for stack, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights[f"model.{stack}.embed_tokens.weight"] = model.source_embedding.tokens.weight
        for name, tensor in layers.named_parameters():
            number, part, kind = _split_name(name)
            weights[f"model.{stack}.layers.{number}.{LAYER_NAMES[part]}.{kind}"] = tensor
        positions = getattr(model, "source_embedding" if stack == "encoder" else "target_embedding").positions
        weights[f"model.{stack}.embed_positions.weight"] = positions
    if config.final_norm:
        for stack, norm in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
            weights |= {f"model.{stack}.layer_norm.{name}": tensor for name, tensor in norm.named_parameters()}
    weights["lm_head.weight"] = model.projection.weight
    weights["final_logits_bias"] = torch.zeros(1, config.target_vocabulary)
    theirs.load_state_dict({name: tensor.detach() for name, tensor in weights.items()})
    return theirs.eval()


def _empty(config: TransformerConfig, rules: DecodingRules) -> Any:
    shape = (config.norm_order, config.final_norm)
    classes: dict[tuple[str, bool], tuple[Any, Any]] = {
        ("post", False): (MarianConfig, MarianMTModel),
        ("pre", True): (PegasusConfig, PegasusForConditionalGeneration),
    }
    if shape not in classes or config.output_bias or config.position_offset or not config.shared_embedding:
        raise ValueError(f"no transformers class computes the same function as {config}")
    config_class, model_class = classes[shape]
    theirs = config_class(
        vocab_size=config.target_vocabulary,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        max_position_embeddings=config.max_positions,
        activation_function=config.activation,
        scale_embedding=config.scale_embedding,
        pad_token_id=rules.pad_id,
        bos_token_id=rules.start_id,
        eos_token_id=rules.end_ids[0],
        decoder_start_token_id=rules.start_id,
        forced_eos_token_id=None,
    )
    return model_class(theirs)


def _split_name(name: str) -> tuple[str, str, str]:
    """Layer number, part and kind, such as 0, self_attention.query and weight."""
    number, _, rest = name.partition(".")
    part, _, kind = rest.rpartition(".")
    return number, part, kind
