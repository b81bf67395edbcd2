"""`dragoman export`."""

from pathlib import Path
from typing import get_args

import click
import torch
from tqdm import tqdm

from dragoman.bundle.cpus import allowed_cpus
from dragoman.bundle.precision import Precision
from dragoman.bundle.verify import VerificationError
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.model.importing import FAMILY_NAMES

FOLDER = click.Path(file_okay=False, path_type=Path)
STAGES = 10


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("bundle", type=FOLDER)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="float32",
    show_default=True,
    help="int8: a quarter of the size, faster on the CPU, the same answers in any batch. float16: half the size, for "
    "CUDA, slow on the CPU. The loss of either is measured.",
)
@click.option("--force", is_flag=True, help="Replace BUNDLE if it exists, and accept any loss of a reduced precision.")
@click.option(
    "--texts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Texts for the proof, in UTF-8: one source text per line, or lines of domain, source and target as for "
    "train.  [default: random texts that use the whole vocabulary]",
)
@click.option(
    "--family",
    type=click.Choice(FAMILY_NAMES),
    help="The checkpoint's family.  [default: recognised by its config.json]",
)
@click.option(
    "--ignore-rule",
    "ignored_rules",
    multiple=True,
    metavar="NAME",
    help="Ignore an unsupported decoding rule of the checkpoint, such as no_repeat_ngram_size. Without this option, "
    "such a rule ends the export. May be given several times.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Number of threads.  [default: the CPUs that this process may use]",
)
def export(
    checkpoint: Path,
    bundle: Path,
    precision: Precision,
    force: bool,
    texts: Path | None,
    family: str | None,
    ignored_rules: tuple[str, ...],
    threads: int | None,
) -> None:
    """Export CHECKPOINT to ONNX, prove the result equal to it, and write it to BUNDLE.

    CHECKPOINT is a folder written by `dragoman train`, or a Hugging Face folder of one of the families below.

    If a check fails, no new bundle is written, and an existing one stays unchanged.
    """
    threads = threads or allowed_cpus()
    torch.set_num_threads(threads)
    options = ExportOptions(precision, _read_texts(texts) if texts else (), force, threads, family, ignored_rules)
    stages = STAGES if precision == "float32" else STAGES + 1
    with tqdm(total=stages, disable=None, bar_format="{n_fmt}/{total_fmt} |{bar}| {elapsed} {desc}") as bar:

        def show(stage: str) -> None:
            bar.update()
            bar.set_description_str(stage)
            if bar.disable:
                click.echo(f"  {stage} ...", err=True)

        try:
            exported, proof = export_checkpoint(checkpoint, bundle, options, show)
        except (VerificationError, ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error
    width = max(len(check.name) for check in proof.checks)
    for check in proof.checks:
        click.echo(f"  {check.name:<{width}}  {check.detail}")
    size, manifest = exported.report()["size"], exported.manifest
    ratio = f"{size['bundle_bytes'] / 1e6:.1f} MB, {size['ratio']:.3f} times the float32 weights"
    click.echo(f"wrote {bundle}: {manifest.name} {manifest.version} ({manifest.family}), {ratio}")


def _read_texts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"--texts {path}: not UTF-8") from error
    rows = [line.split("\t") for line in lines if line.strip()]
    if not rows:
        raise click.UsageError(f"--texts {path}: contains no text")
    return [row[1] if len(row) == 3 else "\t".join(row) for row in rows]
