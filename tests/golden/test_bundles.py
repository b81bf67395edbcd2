"""The shipped checkpoint, its bundles, and a fresh export."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.bundle.graph_decoder import GraphDecoder, decode_alone
from dragoman.bundle.manifest import GOLDEN_FILE, REPORT_FILE, Bundle, open_bundle
from dragoman.bundle.precision import LOSSES
from dragoman.export.command import export
from dragoman.model.checkpoint import load_checkpoint
from tests.golden.shipped import CHECKPOINT, ROOT


class TestTheCheckpoint:
    def test_is_small_enough_to_be_cloned(self) -> None:
        assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*") if path.is_file()) <= 25e6

    def test_loads(self) -> None:
        checkpoint = load_checkpoint(CHECKPOINT)
        assert checkpoint.config.source_languages == ("en",)
        assert checkpoint.config.target_languages == ("fr",)

    def test_its_card_has_data_licences_and_scores(self) -> None:
        card = (CHECKPOINT / "README.md").read_text()
        for word in ("CC-BY 2.0 FR", "Tatoeba", "Debian", "BLEU", "dragoman train"):
            assert word in card


def check_proof(bundle: Bundle) -> None:
    """The bundle was proven on the thousand sentences: the reference's tokens, alone and in every batch."""
    report = bundle.report()
    for check in ("cached_equals_uncached", "greedy_tokens", "alone_equals_batched"):
        assert report[check]["texts"] == 1000
    assert report["greedy_tokens"]["equal"] == 1000
    assert report["alone_equals_batched"]["equal"] == 1000


class TestTheServedBundle:
    def test_is_int8_and_small_enough_to_be_cloned(self, bundle: Bundle) -> None:
        assert bundle.manifest.precision == "int8"
        assert sum(path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file()) <= 15e6

    def test_was_proven_on_the_thousand_sentences(self, bundle: Bundle) -> None:
        check_proof(bundle)

    def test_loses_no_more_than_the_bounds_allow(self, bundle: Bundle) -> None:
        """--force accepts any loss; a shipped bundle must not need it."""
        loss = bundle.report()["loss_of_precision"]
        assert loss["agreement"] >= LOSSES["int8"].agreement
        assert loss["log_prob_drop"] <= LOSSES["int8"].drop

    def test_contains_no_paths_of_the_exporting_machine(self, bundle: Bundle) -> None:
        folders = re.compile(rb"/(home|opt|root|tmp|usr|var|Users)/|" + re.escape(str(ROOT).encode()))
        files = [path for path in bundle.folder.rglob("*") if path.is_file()]
        assert [path.name for path in files if folders.search(path.read_bytes())] == []


class TestTheFloat32Bundle:
    def test_was_proven_on_the_thousand_sentences(self, float32_bundle: Bundle) -> None:
        check_proof(float32_bundle)
        assert float32_bundle.report()["greedy_tokens"]["whole_part"] >= 0.95

    def test_is_at_most_a_tenth_larger_than_its_weights(self, float32_bundle: Bundle) -> None:
        assert float32_bundle.report()["size"]["ratio"] <= 1.1


@pytest.fixture(scope="module")
def fresh(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A fresh export of the served bundle, proven on its own golden texts."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "texts.txt").write_text("\n".join(golden.text for golden in bundle.golden()), encoding="utf-8")
    options = ("--precision", "int8", "--threads", "1", "--texts", str(folder / "texts.txt"))
    run = CliRunner().invoke(export, [*options, str(CHECKPOINT), str(folder / "bundle")])
    assert run.exit_code == 0, run.output
    return open_bundle(folder / "bundle")


class TestAFreshExport:
    def test_gives_the_tokens_of_the_served_bundle(self, fresh: Bundle, bundle: Bundle) -> None:
        golden = bundle.golden()
        assert len(golden) >= 64
        sources = [text.source_ids for text in golden]
        limits = [bundle.manifest.decoding.output_limit(len(source)) for source in sources]
        for which in (bundle, fresh):
            outputs = decode_alone(GraphDecoder(which, threads=1), sources, limits)
            assert [output.tokens for output in outputs] == [text.tokens for text in golden]

    def test_has_the_same_bytes_for_the_same_versions_and_processor(self, fresh: Bundle, bundle: Bundle) -> None:
        here, there = ({name: each.report()[name] for name in ("versions", "processor")} for each in (fresh, bundle))
        if here != there:
            pytest.skip(f"the served bundle was exported with {there}")
        assert reproducible_files(fresh) == reproducible_files(bundle)


def reproducible_files(bundle: Bundle) -> dict[Path, str]:
    """The checksums of the files that do not depend on the texts of the proof."""
    answers = (GOLDEN_FILE, REPORT_FILE)
    return {Path(entry.path): entry.sha256 for entry in bundle.manifest.files if entry.path not in answers}
