"""`dragoman train`."""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from click.core import ParameterSource

from dragoman.bundle.cpus import allowed_cpus
from dragoman.bundle.processor import has_bfloat16
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers.native import MODEL_FILE, SentencePieceTokenizer
from dragoman.model.checkpoint import TOKENIZER_FOLDER, load_checkpoint, load_weights, own_weights
from dragoman.model.config import CheckpointConfig, TransformerConfig
from dragoman.model.training.corpus import EncodedPair, Pair, keep_trainable, read_pairs
from dragoman.model.training.schedule import Schedule
from dragoman.model.training.trainer import Trainer, TrainingError, TrainingPlan
from dragoman.model.training.vocabulary import train_tokenizer
from dragoman.model.transformer import Transformer

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, resolve_path=True, path_type=Path)


def _tiny(vocabulary: int) -> TransformerConfig:
    return dataclasses.replace(_small(vocabulary), d_model=64, heads=4, d_ff=256, encoder_layers=2, decoder_layers=2)


def _small(vocabulary: int) -> TransformerConfig:
    return TransformerConfig(
        vocabulary,
        vocabulary,
        d_model=256,
        d_ff=1024,
        encoder_layers=5,
        decoder_layers=3,
        norm_order="pre",
        final_norm=True,
    )


PRESETS: dict[str, Callable[[int], TransformerConfig]] = {
    "tiny": _tiny,
    "small": _small,
    "base": TransformerConfig.base,
    "big": TransformerConfig.big,
}
"""Shapes by vocabulary: one to try things with, one that a few cores can train, and the paper's two."""

FIXED_BY_CHECKPOINT = ("name", "source_language", "target_language", "preset", "vocabulary", "max_tokens")
"""Options that --from leaves no choice of."""


def domain_share(text: str) -> tuple[str, float]:
    """DOMAIN=NUMBER on the command line."""
    domain, _, number = text.partition("=")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not domain or not 0 <= share < math.inf:
        raise click.BadParameter(f"{text!r} is not a domain, '=' and a number of at least 0")
    return domain, share


@click.command()
@click.argument("train_tsv", type=FILE)
@click.argument("valid_tsv", type=FILE)
@click.argument("out", type=FOLDER)
@click.option("--work", type=FOLDER, help="Where the state to resume from is kept.  [default: OUT.training]")
@click.option("--from", "from_checkpoint", type=FOLDER, help="Go on from this checkpoint's weights.")
@click.option("--name", default="en-fr", show_default=True, help="What clients will call the model.")
@click.option("--source-language", default="en", show_default=True)
@click.option("--target-language", default="fr", show_default=True)
@click.option("--preset", type=click.Choice(list(PRESETS)), default="small", show_default=True)
@click.option("--vocabulary", type=click.IntRange(300), default=8000, show_default=True, help="Joint subword pieces.")
@click.option("--max-tokens", type=click.IntRange(8), default=256, show_default=True, help="Longest text, in tokens.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="How long to train, pauses not counted.")
@click.option("--steps", type=click.IntRange(1), help="How many updates to make.")
@click.option("--token-budget", type=click.IntRange(64), default=3072, show_default=True, help="Target tokens a batch.")
@click.option("--peak-rate", type=click.FloatRange(0, min_open=True), default=1.5e-3, show_default=True)
@click.option("--warmup-steps", type=click.IntRange(1), default=600, show_default=True)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), help="Instead of the preset's.")
@click.option(
    "--share",
    "shares",
    type=domain_share,
    multiple=True,
    metavar="DOMAIN=NUMBER",
    help="How often a domain comes up in an epoch; once where not given.",
)
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
    goes on where it was when the same command is given again; until then its exit status is 1.

    With --from, name, languages, vocabulary and shape are the checkpoint's and cannot be given; only --dropout can.
    """
    if minutes is None and steps is None:
        raise click.UsageError("say how long to train: --minutes, --steps, or both")
    if from_checkpoint is not None:
        _refuse_given(FIXED_BY_CHECKPOINT, "--from takes it from the checkpoint")
    torch.set_num_threads(threads or allowed_cpus())
    torch.manual_seed(seed)
    work = work or out.with_name(out.name + ".training")

    with _plainly_told():
        _check_writable(out.parent)
        pairs, valid = read_pairs(train_tsv), read_pairs(valid_tsv)
        _check_domains("--share", [domain for domain, _ in shares], pairs)
        _check_domains("--valid-domain", valid_domains, valid)
        if from_checkpoint is not None:
            tokenizer_folder = from_checkpoint / TOKENIZER_FOLDER
            config, model = _go_on_from(from_checkpoint, dropout)
        else:
            tokenizer_folder = work / TOKENIZER_FOLDER
            tokenizer = _tokenizer(tokenizer_folder, pairs, vocabulary)
            config = CheckpointConfig(
                name,
                "transformer",
                (source_language,),
                (target_language,),
                _architecture(preset, vocabulary, max_tokens, dropout),
                _rules(tokenizer, max_tokens),
            )
            model = Transformer(config.architecture)

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
    trainer = Trainer(model, config, tokenizer_folder, plan, out, work)
    encoded = _encode(pairs, trainer.tokenizer, config.architecture.max_positions)
    parameters = sum(p.numel() for p in model.parameters())
    click.echo(f"{len(encoded):,} of {len(pairs):,} pairs are of fit length, {parameters:,} parameters", err=True)
    with _plainly_told():
        finished = trainer.run(encoded, _first_of_each_domain(valid, valid_pairs, valid_domains))
    if not finished:
        raise click.ClickException(f"stopped at {trainer.done():.1%}; give the same command again to go on")
    click.echo(f"wrote {out}", err=True)


@contextmanager
def _plainly_told() -> Iterator[None]:
    """What is wrong with the user's files, or ends a run, comes as one line, not as a traceback."""
    try:
        yield
    except (OSError, ValueError, TrainingError) as error:
        raise click.ClickException(str(error)) from error


def _check_writable(folder: Path) -> None:
    """Raise OSError now rather than after hours of training, where nothing can be written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder):
        pass


def _refuse_given(names: Sequence[str], why: str) -> None:
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given: {why}")


def _check_domains(option: str, domains: Sequence[str], pairs: list[Pair]) -> None:
    known = {pair.domain for pair in pairs}
    for domain in domains:
        if domain not in known:
            raise click.UsageError(f"{option} {domain}: the file's domains are {', '.join(sorted(known))}")


def _go_on_from(folder: Path, dropout: float | None) -> tuple[CheckpointConfig, Transformer]:
    before = load_checkpoint(folder)
    if dropout is None:
        return before.config, before.model
    architecture = dataclasses.replace(before.config.architecture, dropout=dropout)
    model = Transformer(architecture)
    load_weights(model, own_weights(before.model), where=str(folder))
    return dataclasses.replace(before.config, architecture=architecture), model


def _tokenizer(folder: Path, pairs: list[Pair], vocabulary: int) -> SentencePieceTokenizer:
    """The run's own tokenizer: learned when the run begins, read when it goes on."""
    if not (folder / MODEL_FILE).is_file():
        click.echo(f"learning {vocabulary} subword pieces", err=True)
        train_tokenizer((text for pair in pairs for text in (pair.source, pair.target)), folder, vocabulary)
    tokenizer = SentencePieceTokenizer(folder)
    if tokenizer.vocabulary != vocabulary:
        raise ValueError(
            f"{folder} was learned with another --vocabulary (was {tokenizer.vocabulary}, is {vocabulary}); "
            "give the same settings to go on, or another --work to begin anew"
        )
    return tokenizer


def _architecture(preset: str, vocabulary: int, max_tokens: int, dropout: float | None) -> TransformerConfig:
    config = dataclasses.replace(PRESETS[preset](vocabulary), max_positions=max_tokens)
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


def _first_of_each_domain(pairs: list[Pair], most: int, domains: Sequence[str]) -> list[Pair]:
    chosen: dict[str, list[Pair]] = {domain: [] for domain in domains or sorted({pair.domain for pair in pairs})}
    for pair in pairs:
        if pair.domain in chosen and len(chosen[pair.domain]) < most:
            chosen[pair.domain].append(pair)
    return [pair for rows in chosen.values() for pair in rows]
