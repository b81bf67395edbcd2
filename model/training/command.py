"""`dragoman train`."""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from click.core import ParameterSource

from dragoman.bundle.cpus import allowed_cpus, has_bfloat16
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
"""Shapes by vocabulary: one for trials, one that a few cores can train, and the paper's two."""


@dataclasses.dataclass(frozen=True)
class NewModel:
    """Options for a model that is trained from scratch."""

    name: str
    source_language: str
    target_language: str
    preset: str
    vocabulary: int
    max_tokens: int


@dataclasses.dataclass(frozen=True)
class Start:
    """The model at the start of a training run."""

    config: CheckpointConfig
    model: Transformer
    tokenizer_folder: Path


FIXED_BY_CHECKPOINT = ("name", "source_language", "target_language", "preset", "vocabulary", "max_tokens")
"""Options that cannot be given with --from."""


def domain_share(text: str) -> tuple[str, float]:
    """Parse DOMAIN=NUMBER from the command line."""
    domain, _, number = text.partition("=")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not domain or not 0 <= share < math.inf:
        raise click.BadParameter(f"must be DOMAIN=NUMBER with a number of at least 0, is {text!r}")
    return domain, share


@click.command()
@click.argument("train_tsv", type=FILE)
@click.argument("valid_tsv", type=FILE)
@click.argument("out", type=FOLDER)
@click.option("--work", type=FOLDER, help="Folder for the state to resume from.  [default: OUT.training]")
@click.option("--from", "from_checkpoint", type=FOLDER, help="Start from this checkpoint's weights.")
@click.option("--name", default="en-fr", show_default=True, help="The model's name for clients.")
@click.option("--source-language", default="en", show_default=True)
@click.option("--target-language", default="fr", show_default=True)
@click.option("--preset", type=click.Choice(list(PRESETS)), default="small", show_default=True)
@click.option("--vocabulary", type=click.IntRange(300), default=8000, show_default=True, help="Joint subword pieces.")
@click.option("--max-tokens", type=click.IntRange(8), default=256, show_default=True, help="Longest text, in tokens.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Training time, without interruptions.")
@click.option("--steps", type=click.IntRange(1), help="Number of updates.")
@click.option(
    "--token-budget", type=click.IntRange(64), default=3072, show_default=True, help="Target tokens per batch."
)
@click.option("--peak-rate", type=click.FloatRange(0, min_open=True), default=1.5e-3, show_default=True)
@click.option("--warmup-steps", type=click.IntRange(1), default=600, show_default=True)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), help="Overrides the preset's dropout.")
@click.option(
    "--share",
    "shares",
    type=domain_share,
    multiple=True,
    metavar="DOMAIN=NUMBER",
    help="How often a domain occurs in an epoch.  [default: once]",
)
@click.option(
    "--valid-pairs", type=click.IntRange(1), default=200, show_default=True, help="Validation pairs per domain."
)
@click.option("--valid-domain", "valid_domains", multiple=True, help="Validate on this domain only; repeatable.")
@click.option("--validate-minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Number of threads.  [default: the CPUs that this process may use]",
)
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

    The files have lines of domain, source and target, separated by tabs; .xz is decompressed. If a run is interrupted,
    its exit status is 1; the same command resumes it.

    With --from, the checkpoint determines name, languages, vocabulary and shape; only --dropout can be changed.
    """
    _check_options(minutes, steps, from_checkpoint)
    new = NewModel(name, source_language, target_language, preset, vocabulary, max_tokens)
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
    threads = threads or allowed_cpus()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    work = work or out.with_name(out.name + ".training")
    with _errors_on_one_line():
        _check_writable(out.parent)
        pairs = _read_pairs(train_tsv, "--share", plan.shares)
        valid = _read_pairs(valid_tsv, "--valid-domain", valid_domains)
        start = (
            _from_scratch(new, dropout, work / TOKENIZER_FOLDER, pairs)
            if from_checkpoint is None
            else _from_checkpoint(from_checkpoint, dropout)
        )
        trainer = Trainer(start.model, start.config, start.tokenizer_folder, plan, out, work)
        _run(trainer, pairs, _first_of_each_domain(valid, valid_pairs, valid_domains), threads)
    click.echo(f"wrote {out}", err=True)


@contextmanager
def _errors_on_one_line() -> Iterator[None]:
    """Show an error in the user's files, or one that ends a run, as one line without a traceback."""
    try:
        yield
    except (OSError, ValueError, TrainingError) as error:
        raise click.ClickException(str(error)) from error


def _run(trainer: Trainer, pairs: list[Pair], valid: list[Pair], threads: int) -> None:
    """Train to the end. Raises ClickException if a signal stopped the run."""
    encoded = _encode(pairs, trainer.tokenizer, trainer.config.architecture.max_positions, threads)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    click.echo(f"{len(encoded):,} of {len(pairs):,} pairs have a suitable length, {parameters:,} parameters", err=True)
    if not trainer.run(encoded, valid):
        raise click.ClickException(f"stopped at {trainer.done():.1%}; the same command resumes the run")


def _check_writable(folder: Path) -> None:
    """Raise OSError now, instead of after hours of training, if `folder` is not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder):
        pass


def _check_options(minutes: float | None, steps: int | None, from_checkpoint: Path | None) -> None:
    """Raise UsageError for options that are missing, or that exclude each other."""
    if minutes is None and steps is None:
        raise click.UsageError("set the length of the training: --minutes, --steps, or both")
    context = click.get_current_context()
    for name in FIXED_BY_CHECKPOINT if from_checkpoint else ():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given: --from takes it from the checkpoint")


def _read_pairs(path: Path, option: str, domains: Iterable[str]) -> list[Pair]:
    """The pairs of a file. Raises UsageError for a domain in `option` that the file does not have."""
    pairs = read_pairs(path)
    known = {pair.domain for pair in pairs}
    for domain in domains:
        if domain not in known:
            raise click.UsageError(f"{option} {domain}: the file's domains are {', '.join(sorted(known))}")
    return pairs


def _from_checkpoint(folder: Path, dropout: float | None) -> Start:
    before = load_checkpoint(folder)
    if dropout is None:
        return Start(before.config, before.model, folder / TOKENIZER_FOLDER)
    architecture = dataclasses.replace(before.config.architecture, dropout=dropout)
    model = Transformer(architecture)
    load_weights(model, own_weights(before.model), where=str(folder))
    return Start(dataclasses.replace(before.config, architecture=architecture), model, folder / TOKENIZER_FOLDER)


def _from_scratch(new: NewModel, dropout: float | None, tokenizer_folder: Path, pairs: list[Pair]) -> Start:
    tokenizer = _tokenizer(tokenizer_folder, pairs, new.vocabulary)
    config = CheckpointConfig(
        new.name,
        "transformer",
        (new.source_language,),
        (new.target_language,),
        _architecture(new, dropout),
        _rules(tokenizer, new.max_tokens),
    )
    return Start(config, Transformer(config.architecture), tokenizer_folder)


def _tokenizer(folder: Path, pairs: list[Pair], vocabulary: int) -> SentencePieceTokenizer:
    """The run's own tokenizer, learned by a new run and read by a resumed one."""
    if not (folder / MODEL_FILE).is_file():
        click.echo(f"learning {vocabulary} subword pieces", err=True)
        train_tokenizer((text for pair in pairs for text in (pair.source, pair.target)), folder, vocabulary)
    tokenizer = SentencePieceTokenizer(folder)
    if tokenizer.vocabulary != vocabulary:
        raise ValueError(
            f"{folder} was learned with another --vocabulary (was {tokenizer.vocabulary}, is {vocabulary}); "
            "use the same settings to resume, or another --work to start over"
        )
    return tokenizer


def _architecture(new: NewModel, dropout: float | None) -> TransformerConfig:
    config = dataclasses.replace(PRESETS[new.preset](new.vocabulary), max_positions=new.max_tokens)
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


def _encode(pairs: list[Pair], tokenizer: SentencePieceTokenizer, max_tokens: int, threads: int) -> list[EncodedPair]:
    sources = tokenizer.encode_all([pair.source for pair in pairs], threads=threads)
    targets = tokenizer.encode_all([pair.target for pair in pairs], threads=threads)
    rows = zip(pairs, sources, targets, strict=True)
    return keep_trainable((EncodedPair(pair.domain, source, target) for pair, source, target in rows), max_tokens)


def _first_of_each_domain(pairs: list[Pair], count: int, domains: Sequence[str]) -> list[Pair]:
    chosen: dict[str, list[Pair]] = {domain: [] for domain in domains or sorted({pair.domain for pair in pairs})}
    for pair in pairs:
        if pair.domain in chosen and len(chosen[pair.domain]) < count:
            chosen[pair.domain].append(pair)
    return [pair for rows in chosen.values() for pair in rows]
