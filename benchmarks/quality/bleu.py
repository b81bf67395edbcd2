"""Translation quality of a bundle: BLEU and chrF of its greedy output, by domain.

    python -m benchmarks.quality.bleu BUNDLE --data TEST.tsv

Each line of the file has domain, source and target, separated by tabs; .xz files are decompressed.
"""

from pathlib import Path

import click

from benchmarks.bundle_engine import Translator
from dragoman.model.training.corpus import read_pairs
from dragoman.model.training.evaluation import score


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(bundle: Path, data: Path, threads: int) -> None:
    """Print the scores of BUNDLE as a Markdown table."""
    pairs = read_pairs(data)
    translator = Translator(bundle, threads=threads)
    translations = translator.translate([pair.source for pair in pairs])
    translator.close()
    print("| domain | pairs | BLEU | chrF |\n| --- | ---: | ---: | ---: |")
    for row in score(pairs, translations):
        print(f"| {row.domain} | {row.pairs} | {row.bleu:.1f} | {row.chrf:.1f} |")


if __name__ == "__main__":
    main()
