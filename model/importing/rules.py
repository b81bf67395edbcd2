"""Decoding rules from generation_config.json, or from config.json in an older folder.

A rule that affects greedy decoding is supported, or refused by name.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import Tokenizer
from dragoman.model.importing.folder import CONFIG_FILE, GENERATION_FILE, ModelFolder
from dragoman.model.importing.tokenizer_files import one_id

NEUTRAL: Mapping[str, Collection[object]] = {
    "begin_suppress_tokens": (None, []),
    "constraints": (None,),
    "dola_layers": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "exponential_decay_length_penalty": (None,),
    "force_bos_token_to_be_generated": (None, False),
    "force_words_ids": (None,),
    "forced_decoder_ids": (None,),
    "guidance_scale": (None, 1),
    "max_time": (None,),
    "min_length": (None, 0, 1),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "penalty_alpha": (None, 0),
    "repetition_penalty": (None, 1),
    "sequence_bias": (None, []),
    "stop_strings": (None,),
    "token_healing": (None, False),
    "watermarking_config": (None,),
}
"""Unsupported rules, with the values at which they have no effect."""

SUPPORTED = frozenset(
    {
        "bad_words_ids",
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "max_length",
        "max_new_tokens",
        "pad_token_id",
        "suppress_tokens",
    }
)

WITHOUT_EFFECT = frozenset(
    {
        # beams
        "diversity_penalty", "early_stopping", "length_penalty", "num_beam_groups", "num_beams", "num_return_sequences",
        # sampling
        "do_sample", "epsilon_cutoff", "eta_cutoff", "min_p", "temperature", "top_h", "top_k", "top_p", "typical_p",
        # internals of transformers
        "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "cache_config",
        "cache_implementation", "compile_config", "continuous_batching_config", "disable_compile", "is_assistant",
        "low_memory", "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens",
        "num_assistant_tokens_schedule", "prefill_chunk_size", "prompt_lookup_num_tokens", "speculation_type",
        "target_lookbehind", "use_cache", "use_mtp",
        # form of the result
        "output_attentions", "output_hidden_states", "output_logits", "output_scores", "remove_invalid_values",
        "renormalize_logits", "return_dict_in_generate",
        # origin of the file
        "_commit_hash", "_from_model_config", "transformers_version",
    }
)  # fmt: skip
"""Settings of generation_config.json that do not affect greedy decoding."""


@dataclass(frozen=True)
class Rules:
    """A folder's decoding rules, without the prompt, which comes from the tokenizer."""

    end_ids: tuple[int, ...]
    pad_id: int
    forced_start_id: int | None
    """The first token of every output, whatever the logits are."""
    forced_end_id: int | None
    """The last token of an output that reaches the limit."""
    suppressed_ids: tuple[int, ...]
    max_length: int | None
    """The longest target, including the prompt."""
    max_new_tokens: int | None
    """The longest target without the prompt; takes precedence over max_length."""

    def decoding(self, tokenizer: Tokenizer, positions: int, *, suppress_padding: bool = False) -> DecodingRules:
        """Our own rules for a model with `positions`.

        Raises ValueError if the forced first token is not in the tokenizer's prompts.
        """
        prompts = [tokenizer.prompt(language) for language in tokenizer.target_languages or ("",)]
        forced = self.forced_start_id
        if forced is not None and not all(forced in prompt for prompt in prompts):
            raise ValueError(f"forced_bos_token_id: must be in the tokenizer's prompt {prompts[0]}, is {forced}")
        padding = {self.pad_id} if suppress_padding else set()
        return DecodingRules(
            start_id=prompts[0][0],
            end_ids=self.end_ids,
            pad_id=self.pad_id,
            suppressed_ids=tuple(sorted(padding.union(self.suppressed_ids))),
            prompt_tokens=len(prompts[0]),
            forced_end_id=self.forced_end_id,
            max_source_tokens=positions,
            max_output_tokens=self.max_output_tokens(positions, len(prompts[0])),
        )

    def max_output_tokens(self, positions: int, prompt: int) -> int:
        """The longest output of a model with `positions`, after a prompt of `prompt` tokens."""
        room = positions - (prompt - 1)
        if self.max_new_tokens is not None:
            return max(1, min(room, self.max_new_tokens))
        return room if self.max_length is None else max(1, min(room, self.max_length - prompt))


def read_rules(folder: ModelFolder, ignored: Collection[str] = ()) -> Rules:
    """The rules of a folder, without those named in `ignored`.

    Raises ValueError naming each unsupported rule.
    """
    file = CONFIG_FILE if folder.generation is None else GENERATION_FILE
    settings = folder.config if folder.generation is None else folder.generation
    where = folder.path / file
    settings = {name: value for name, value in settings.items() if name not in ignored}
    faults = [
        f"{name} {settings[name]!r}" for name in NEUTRAL if name in settings and settings[name] not in NEUTRAL[name]
    ]
    if folder.generation is not None:
        known = NEUTRAL.keys() | SUPPORTED | WITHOUT_EFFECT
        faults += [f"{name} {value!r}" for name, value in settings.items() if name not in known and value is not None]
    if faults:
        raise ValueError(f"{where}: unsupported decoding rules: {', '.join(faults)}; --ignore-rule NAME ignores one")

    ends = settings.get("eos_token_id", folder.config.get("eos_token_id"))
    end_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    pad_id = one_id(where, "pad_token_id", settings.get("pad_token_id", folder.config.get("pad_token_id")))
    if pad_id is None or not all(isinstance(number, int) for number in end_ids):
        raise ValueError(f"{where}: pad_token_id and eos_token_id must be set, are {pad_id} and {ends}")
    return Rules(
        end_ids=end_ids,
        pad_id=pad_id,
        forced_start_id=one_id(where, "forced_bos_token_id", settings.get("forced_bos_token_id")),
        forced_end_id=one_id(where, "forced_eos_token_id", settings.get("forced_eos_token_id")),
        suppressed_ids=_suppressed(where, settings, end_ids),
        max_length=settings.get("max_length"),
        max_new_tokens=settings.get("max_new_tokens"),
    )


def _suppressed(where: Path, settings: Mapping[str, Any], end_ids: Collection[int]) -> tuple[int, ...]:
    """Tokens that are never chosen. A bad word that is an end token has no effect, as in transformers."""
    words: list[list[int]] = settings.get("bad_words_ids") or []
    if any(len(word) != 1 for word in words):
        raise ValueError(f"{where}: bad_words_ids must be single tokens, are {words!r}; --ignore-rule ignores them")
    bad = {word[0] for word in words} - set(end_ids)
    return tuple(sorted(bad | set(settings.get("suppress_tokens") or ())))
