import dataclasses
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, own_weights
from dragoman.model.training.command import train
from tests.support.tiny import PIECES, TINY, sentences, tiny_checkpoint


class Workplace:
    """A folder with a small corpus of the domains toy and game, and a tiny checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.train_tsv, self.valid_tsv = folder / "train.tsv", folder / "valid.tsv"
        for path, count in ((self.train_tsv, 60), (self.valid_tsv, 4)):
            texts = sentences(count, seed=count)
            rows = [f"{('toy', 'game')[i % 2]}\t{text}\t{text.lower()}\n" for i, text in enumerate(texts)]
            path.write_text("".join(rows), encoding="utf-8")
        self.before = tiny_checkpoint(folder / "before")

    def run(self, *options: str) -> Result:
        """`dragoman train` with `options`."""
        return CliRunner().invoke(
            train, [str(self.train_tsv), str(self.valid_tsv), str(self.out), "--threads=1", *options]
        )

    def continue_training(self, *options: str) -> Result:
        """`dragoman train --from` the tiny checkpoint, for two steps."""
        return self.run("--from", str(self.folder / "before"), "--steps=2", *options)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def difference(one: Checkpoint, other: Checkpoint) -> float:
    """The largest difference between two weights."""
    ours, theirs = own_weights(one.model), own_weights(other.model)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


# --- --from


def test_from_keeps_weights_config_and_tokenizer(workplace: Workplace) -> None:
    result = workplace.continue_training("--peak-rate=1e-6")
    assert result.exit_code == 0, result.output
    assert "60 of 60 pairs have a suitable length" in result.output
    after = load_checkpoint(workplace.out)
    assert after.config == workplace.before.config
    for path in (workplace.folder / "before" / "tokenizer").iterdir():
        assert (workplace.out / "tokenizer" / path.name).read_bytes() == path.read_bytes()
    # Two such small steps, and float16, hardly change a weight.
    assert difference(after, workplace.before) < 5e-3


def test_from_continues_training(workplace: Workplace) -> None:
    assert workplace.continue_training("--peak-rate=1e-2", "--warmup-steps=1").exit_code == 0
    assert difference(load_checkpoint(workplace.out), workplace.before) > 5e-3


def test_from_takes_another_dropout(workplace: Workplace) -> None:
    assert workplace.continue_training("--dropout=0.25", "--peak-rate=1e-6").exit_code == 0
    after = load_checkpoint(workplace.out)
    assert after.config.architecture == dataclasses.replace(TINY, dropout=0.25)
    assert after.config.decoding == workplace.before.config.decoding
    assert difference(after, workplace.before) < 5e-3


@pytest.mark.parametrize(
    "option",
    [
        "--name=en-fr",  # even where it is the default
        "--source-language=en",
        "--target-language=fr",
        "--preset=small",
        "--vocabulary=340",
        "--max-tokens=64",
    ],
)
def test_from_refuses_what_it_takes_from_the_checkpoint(workplace: Workplace, option: str) -> None:
    result = workplace.continue_training(option)
    assert result.exit_code == 2
    assert f"{option.partition('=')[0]} cannot be given: --from takes it from the checkpoint" in result.output
    assert not workplace.out.exists()


def test_a_checkpoint_can_be_replaced_by_its_continuation(workplace: Workplace) -> None:
    workplace.out = workplace.folder / "before"
    (workplace.out / "README.md").write_text("a card")
    result = workplace.continue_training("--peak-rate=1e-2", "--warmup-steps=1")
    assert result.exit_code == 0, result.output
    assert (workplace.out / "README.md").read_text() == "a card"
    assert difference(load_checkpoint(workplace.out), workplace.before) > 5e-3


def test_a_broken_checkpoint_is_reported_in_one_line(workplace: Workplace) -> None:
    (workplace.folder / "before" / "weights.safetensors").write_bytes(b"")
    result = workplace.continue_training()
    assert_error(result, "weights.safetensors: not a complete safetensors file")


def test_a_missing_checkpoint_is_reported_in_one_line(workplace: Workplace) -> None:
    assert_error(workplace.run("--steps=1", "--from", str(workplace.folder / "nowhere")), "config.json: missing")


# --- errors of the user


def assert_error(result: Result, message: str, code: int = 1) -> None:
    """The command ended with one line and without a traceback."""
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == code
    assert message in result.output
    assert result.output.splitlines()[-1].startswith("Error: ")


def test_a_bad_line_of_the_corpus_is_named(workplace: Workplace) -> None:
    with workplace.train_tsv.open("a") as file:
        file.write("toy\tonly a source\n")
    assert_error(
        workplace.continue_training(),
        "train.tsv:61: must have 3 columns (domain, source, target) separated by tabs, has 2",
    )


def test_a_bad_line_of_the_validation_pairs_is_named(workplace: Workplace) -> None:
    workplace.valid_tsv.write_text("toy\t\tblank\n")
    assert_error(workplace.continue_training(), "valid.tsv:1: the source is blank")


def test_the_length_of_a_run_is_required(workplace: Workplace) -> None:
    assert_error(workplace.run(), "set the length of the training: --minutes, --steps, or both", code=2)


@pytest.mark.parametrize("option", ["--share=tatoeba=2", "--valid-domain=tatoeba"])
def test_an_unknown_domain_is_refused_with_the_known_ones(workplace: Workplace, option: str) -> None:
    name = option.split("=")[0]
    assert_error(workplace.continue_training(option), f"{name} tatoeba: the file's domains are game, toy", code=2)


@pytest.mark.parametrize("share", ["toy", "toy=", "=2", "toy=many", "toy=-1", "toy=nan", "toy=inf"])
def test_an_invalid_share_is_refused(workplace: Workplace, share: str) -> None:
    assert_error(
        workplace.continue_training(f"--share={share}"),
        f"must be DOMAIN=NUMBER with a number of at least 0, is '{share}'",
        code=2,
    )


def test_shares_of_zero_for_all_domains_are_refused(workplace: Workplace) -> None:
    assert_error(workplace.continue_training("--share=toy=0", "--share=game=0"), "no pairs left to train on")


def test_a_corpus_of_overlong_texts_is_refused(workplace: Workplace) -> None:
    workplace.train_tsv.write_text("toy\t" + "kite " * 100 + "\tshort\n")
    assert_error(workplace.continue_training(), "no pairs left to train on")


def test_a_vocabulary_too_large_for_the_corpus_is_refused(workplace: Workplace) -> None:
    result = workplace.run("--steps=1", "--preset=tiny", "--vocabulary=5000")
    assert_error(result, "the corpus cannot be split into 5000 pieces: Vocabulary size too high")


@pytest.mark.parametrize("option", ["out", "work"])
def test_an_unwritable_folder_is_reported_before_training(workplace: Workplace, option: str) -> None:
    blocked = workplace.folder / "file" / option
    blocked.parent.write_text("in the way")
    if option == "out":
        workplace.out = blocked
    result = workplace.continue_training(*([] if option == "out" else ["--work", str(blocked)]))
    assert_error(result, str(workplace.folder / "file"))
    assert "BLEU" not in result.output


def test_resuming_with_another_vocabulary_is_refused(workplace: Workplace) -> None:
    options = ("--steps=1", "--preset=tiny", "--max-tokens=32", "--peak-rate=1e-5")
    result = workplace.run(*options, f"--vocabulary={PIECES}")
    assert result.exit_code == 0, result.output
    again = workplace.run(*options, "--vocabulary=330")
    assert_error(again, "was learned with another --vocabulary (was 340, is 330)")


def test_resuming_with_another_setting_is_refused_by_name(workplace: Workplace) -> None:
    assert workplace.continue_training("--seed=1").exit_code == 0
    assert_error(workplace.continue_training("--seed=2"), "has another seed (was 1, is 2)")
    assert_error(workplace.continue_training("--dropout=0.5"), "has another dropout (was 0.0, is 0.5)")
    other = workplace.continue_training("--seed=2", "--work", str(workplace.folder / "other"))
    assert other.exit_code == 0, other.output


# --- the result of a new run


def test_a_new_checkpoint_follows_the_options(workplace: Workplace) -> None:
    result = workplace.run(
        "--steps=1", "--preset=tiny", f"--vocabulary={PIECES}", "--max-tokens=48", "--dropout=0.3",
        "--name=tiny-model", "--source-language=de", "--target-language=it", "--valid-domain=game", "--valid-pairs=1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    config = load_checkpoint(workplace.out).config
    assert (config.name, config.source_languages, config.target_languages) == ("tiny-model", ("de",), ("it",))
    size, rules = config.architecture, config.decoding
    assert (size.source_vocabulary, size.target_vocabulary, size.dropout) == (PIECES, PIECES, 0.3)
    assert (size.max_positions, rules.max_source_tokens, rules.max_output_tokens) == (48, 48, 48)
    assert (rules.start_id, rules.end_ids, rules.pad_id, rules.suppressed_ids) == (1, (2,), 0, (0, 1, 3))
    log = [json.loads(line) for line in (workplace.folder / "out.training" / "log.jsonl").read_text().splitlines()]
    assert [(score["domain"], score["pairs"]) for score in log[-1]["scores"]] == [("game", 1)]
    assert {tensor.dtype for tensor in own_weights(load_checkpoint(workplace.out).model).values()} == {torch.float32}
