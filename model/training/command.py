"""`dragoman train`."""

import dataclasses
import os
from pathlib import Path

import click
import torch

from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.config import CheckpointConfig, DecodingRules, TransformerConfig
from dragoman.model.processor import has_bfloat16
from dragoman.model.tokenizer import MODEL_FILE, SentencePieceTokenizer
from dragoman.model.training.corpus import EncodedPair, Pair, keep_trainable, read_pairs
from dragoman.model.training.schedule import Schedule
from dragoman.model.training.trainer import Trainer, TrainingPlan
from dragoman.model.training.vocabulary import train_tokenizer
from dragoman.model.transformer import Transformer

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


class Share(click.ParamType):
    """DOMAIN=NUMBER on the command line."""

    name = "domain=number"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        domain, _, number = value.partition("=")
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if not domain or share < 0:
            self.fail(f"{value!r} is not a domain, '=' and a number of at least 0", param, ctx)
        return domain, share


@click.command()
@click.argument("train_tsv", type=FILE)
@click.argument("valid_tsv", type=FILE)
@click.argument("out", type=FOLDER)
@click.option("--work", type=FOLDER, help="Where the state to resume from is kept.  [default: OUT.training]")
@click.option("--from", "from_checkpoint", type=FOLDER, help="Go on from this checkpoint's weights and vocabulary.")
@click.option("--name", default="en-fr", show_default=True, help="What clients will call the model.")
@click.option("--source-language", default="en", show_default=True)
@click.option("--target-language", default="fr", show_default=True)
@click.option("--preset", type=click.Choice(["small", "base", "big"]), default="small", show_default=True)
@click.option("--vocabulary", type=click.IntRange(300), default=8000, show_default=True, help="Joint subword pieces.")
@click.option("--max-tokens", type=click.IntRange(8), default=256, show_default=True, help="Longest text, in tokens.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="How long to train, pauses not counted.")
@click.option("--steps", type=click.IntRange(1), help="How many updates to make.")
@click.option("--token-budget", type=click.IntRange(64), default=3072, show_default=True, help="Target tokens a batch.")
@click.option("--peak-rate", type=click.FloatRange(0, min_open=True), default=1.5e-3, show_default=True)
@click.option("--warmup-steps", type=click.IntRange(1), default=600, show_default=True)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), help="Instead of the preset's.")
@click.option("--share", "shares", type=Share(), multiple=True, help="How often a domain comes up in an epoch.")
@click.option("--valid-pairs", type=click.IntRange(1), default=200, show_default=True, help="Of each domain.")
@click.option("--valid-domain", "valid_domains", multiple=True, help="Validate on these only.")
@click.option("--validate-minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Cores to use.  [default: all that are allowed]")
@click.option("--seed", type=int, default=1, show_default=True)
def train(
    train_tsv: Path,
    valid_tsv: Path,
    out: Path,
    work: Path | None,
    from_checkpoint: Path | None,
    name: str,
    source_language: str,
    target_language: str,
    preset: str,
    vocabulary: int,
    max_tokens: int,
    minutes: float | None,
    steps: int | None,
    token_budget: int,
    peak_rate: float,
    warmup_steps: int,
    dropout: float | None,
    shares: tuple[tuple[str, float], ...],
    valid_pairs: int,
    valid_domains: tuple[str, ...],
    validate_minutes: float,
    threads: int | None,
    seed: int,
) -> None:
    """Train a model on TRAIN_TSV and write a native checkpoint to OUT.

    The files hold lines of domain, source and target, parted by tabs; .xz is unpacked. An interrupted run
    goes on where it was when the same command is given again.
    """
    if minutes is None and steps is None:
        raise click.UsageError("say how long to train: --minutes, --steps, or both")
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    torch.manual_seed(seed)
    work = work or out.with_name(out.name + ".training")
    pairs, valid = read_pairs(train_tsv), _first_of_each_domain(read_pairs(valid_tsv), valid_pairs, valid_domains)

    if from_checkpoint is not None:
        before = load_checkpoint(from_checkpoint)
        config, model, tokenizer_folder = before.config, before.model, from_checkpoint / "tokenizer"
    else:
        tokenizer_folder = work / "tokenizer"
        if not (tokenizer_folder / MODEL_FILE).is_file():
            click.echo(f"learning {vocabulary} subword pieces", err=True)
            train_tokenizer((text for pair in pairs for text in (pair.source, pair.target)), tokenizer_folder, vocabulary)
        architecture = _architecture(preset, vocabulary, max_tokens, dropout)
        config = CheckpointConfig(
            name,
            "transformer",
            (source_language,),
            (target_language,),
            architecture,
            _rules(SentencePieceTokenizer(tokenizer_folder), max_tokens),
        )
        model = Transformer(architecture)

    plan = TrainingPlan(
        schedule=Schedule(peak_rate, warmup_steps),
        max_steps=steps,
        max_minutes=minutes,
        token_budget=token_budget,
        shares=dict(shares),
        validate_minutes=validate_minutes,
        seed=seed,
        bfloat16=has_bfloat16(),
    )
    encoded = _encode(pairs, SentencePieceTokenizer(tokenizer_folder), config.architecture.max_positions)
    click.echo(f"{len(encoded):,} pairs, {sum(p.numel() for p in model.parameters()):,} parameters", err=True)
    trainer = Trainer(model, config, tokenizer_folder, plan, out, work)
    if trainer.run(encoded, valid):
        click.echo(f"wrote {out}", err=True)
    else:
        click.echo(f"stopped at {trainer.done():.1%}; give the same command again to go on", err=True)


def _architecture(preset: str, vocabulary: int, max_tokens: int, dropout: float | None) -> TransformerConfig:
    if preset == "small":
        config = TransformerConfig(
            vocabulary,
            vocabulary,
            d_model=256,
            d_ff=1024,
            encoder_layers=5,
            decoder_layers=3,
            norm_order="pre",
            final_norm=True,
        )
    else:
        config = TransformerConfig.base(vocabulary) if preset == "base" else TransformerConfig.big(vocabulary)
    config = dataclasses.replace(config, max_positions=max_tokens)
    return config if dropout is None else dataclasses.replace(config, dropout=dropout)


def _rules(tokenizer: SentencePieceTokenizer, max_tokens: int) -> DecodingRules:
    return DecodingRules(
        start_id=tokenizer.start_id,
        end_ids=(tokenizer.end_id,),
        pad_id=tokenizer.pad_id,
        suppressed_ids=tuple(i for i in tokenizer.control_ids if i != tokenizer.end_id),
        max_source_tokens=max_tokens,
        max_output_tokens=max_tokens,
    )


def _encode(pairs: list[Pair], tokenizer: SentencePieceTokenizer, longest: int) -> list[EncodedPair]:
    sources = tokenizer.encode_all([pair.source for pair in pairs])
    targets = tokenizer.encode_all([pair.target for pair in pairs])
    rows = zip(pairs, sources, targets, strict=True)
    return keep_trainable((EncodedPair(pair.domain, source, target) for pair, source, target in rows), longest)


def _first_of_each_domain(pairs: list[Pair], most: int, domains: tuple[str, ...]) -> list[Pair]:
    known = sorted({pair.domain for pair in pairs})
    for domain in domains:
        if domain not in known:
            raise click.UsageError(f"--valid-domain {domain}: the validation file has {', '.join(known)}")
    chosen: dict[str, list[Pair]] = {domain: [] for domain in domains or known}
    for pair in pairs:
        if pair.domain in chosen and len(chosen[pair.domain]) < most:
            chosen[pair.domain].append(pair)
    return [pair for rows in chosen.values() for pair in rows]
