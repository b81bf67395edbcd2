"""Training: a toy task is learned, and an interrupted run ends bit for bit like an uninterrupted one."""

import dataclasses
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from dragoman.model.checkpoint import load_checkpoint, own_weights, read_weights
from dragoman.model.config import CheckpointConfig
from dragoman.model.training.command import train
from dragoman.model.training.corpus import EncodedPair, Pair
from dragoman.model.training.evaluation import translate_all
from dragoman.model.training.schedule import Schedule
from dragoman.model.training.trainer import STATE_FILE, Trainer, TrainingError, TrainingPlan
from dragoman.model.transformer import Transformer
from tests.support.tiny import PIECES, TINY, WORDS, tiny_rules, tiny_tokenizer

STEPS = 20
USUAL = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
"""The signal handlers before any run."""

PLAN = TrainingPlan(
    schedule=Schedule(peak=3e-3, warmup_steps=5),
    max_steps=STEPS,
    max_minutes=None,
    token_budget=48,
    shares={"often": 1.5},
    average_part=0.6,
    average_every=3,
    bfloat16=False,
)
ARCHITECTURE = dataclasses.replace(TINY, dropout=0.1)  # so that the state of the random generator matters
VALID = [Pair("toy", "A kite.", "Un cerf-volant."), Pair("toy", "A boat.", "Un bateau.")]


def toy_pairs(count: int = 30) -> list[EncodedPair]:
    rng = random.Random(4)

    def ids() -> list[int]:
        return [*(rng.randrange(4, PIECES) for _ in range(rng.randint(1, 8))), 2]

    return [EncodedPair(rng.choice(("often", "seldom")), ids(), ids()) for _ in range(count)]


class Run:
    """A folder with one training run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        tiny_tokenizer(folder / "tokenizer")

    def trainer(self, plan: TrainingPlan = PLAN, *, seed: int = 0, **architecture: Any) -> Trainer:
        """The trainer of a new process, whose model starts with random weights from `seed`."""
        size = dataclasses.replace(ARCHITECTURE, **architecture)
        config = CheckpointConfig("toy", "transformer", ("en",), ("fr",), size, tiny_rules(size))
        torch.manual_seed(seed)
        model = Transformer(size)
        return Trainer(model, config, self.folder / "tokenizer", plan, self.out, self.folder / "work")

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.folder / "work" / STATE_FILE, weights_only=True)
        return state

    def saved_weights(self) -> dict[str, Tensor]:
        return {name: tensor.float() for name, tensor in read_weights(self.out / "weights.safetensors").items()}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("uninterrupted"))
    assert run.trainer().run(toy_pairs(), VALID)
    return run


def when(model: Transformer, *, training: bool, time: int, then: Callable[[], object]) -> None:
    """Call `then` in the model's `time`-th pass in training mode, or in eval mode."""
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += model.training is training
        if passes == time and model.training is training:
            then()

    model.encoder[0].register_forward_hook(count)


def assert_same(found: Any, expected: Any, where: str = "state") -> None:
    """Compare two states recursively, bit for bit."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, value in enumerate(expected):
            assert_same(found[index], value, f"{where}.{index}")
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected), where
    else:
        assert found == expected, where


def assert_ended_like(run: Run, other: Run) -> None:
    found, expected = run.state(), other.state()
    assert found["progress"].pop("seconds") > 0
    assert expected["progress"].pop("seconds") > 0
    for part in ("progress", "model", "mean", "optimizer", "random"):
        assert_same(found[part], expected[part], part)
    assert_same(run.saved_weights(), other.saved_weights(), "checkpoint")


# --- interruption and resumption


def test_a_run_stopped_twice_ends_bit_equal(run: Run, uninterrupted: Run) -> None:
    steps = 0
    for number, passes in ((signal.SIGTERM, 4), (signal.SIGINT, 11)):  # in the first epoch, and among averaged steps
        trainer = run.trainer(seed=steps)
        when(trainer.model, training=True, time=passes, then=partial(signal.raise_signal, number))
        assert not trainer.run(toy_pairs(), VALID)
        steps += passes
        assert run.state()["progress"]["step"] == steps
        assert not run.out.exists()
    assert run.state()["progress"]["epoch"] > 0
    assert run.state()["progress"]["averaged"] > 0
    assert run.trainer(seed=99).run(toy_pairs(), VALID)
    assert_ended_like(run, uninterrupted)


def test_signal_handlers_are_restored_after_a_run(uninterrupted: Run) -> None:
    assert uninterrupted.out.is_dir()
    assert {number: signal.getsignal(number) for number in USUAL} == USUAL


def test_a_run_killed_in_validation_loses_no_step(run: Run, uninterrupted: Run) -> None:
    plan = dataclasses.replace(PLAN, validate_minutes=1e-9)  # after each step
    trainer = run.trainer(plan)
    when(trainer.model, training=False, time=7, then=die)
    with pytest.raises(Killed):
        trainer.run(toy_pairs(), VALID)
    assert run.state()["progress"]["step"] == 7
    assert run.trainer(plan, seed=99).run(toy_pairs(), VALID)
    assert_ended_like(run, uninterrupted)  # so validation changes nothing


def test_a_signal_in_validation_stops_at_the_next_step(run: Run) -> None:
    trainer = run.trainer(dataclasses.replace(PLAN, validate_minutes=1e-9))
    when(trainer.model, training=False, time=2, then=lambda: signal.raise_signal(signal.SIGTERM))
    assert not trainer.run(toy_pairs(), VALID)
    assert run.state()["progress"]["step"] == 3


def test_a_run_killed_in_its_last_validation_can_be_completed(run: Run, uninterrupted: Run) -> None:
    trainer = run.trainer()
    when(trainer.model, training=False, time=1, then=die)
    with pytest.raises(Killed):
        trainer.run(toy_pairs(), VALID)
    assert run.state()["progress"]["step"] == STEPS
    assert not run.out.exists()
    assert run.trainer(seed=99).run(toy_pairs(), VALID)
    assert_ended_like(run, uninterrupted)


def test_resuming_a_complete_run_changes_nothing(
    run: Run, uninterrupted: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.trainer().run(toy_pairs(), VALID)
    (run.out / "README.md").write_text("what it was trained on")
    capsys.readouterr()
    assert run.trainer(seed=99).run(toy_pairs(), VALID)
    assert f"this run is complete at step {STEPS}" in capsys.readouterr().err
    assert (run.out / "README.md").is_file()
    assert_same(run.saved_weights(), uninterrupted.saved_weights())


class Killed(BaseException):
    """Simulates a process that ends at this point."""


def die() -> None:
    raise Killed


@pytest.mark.parametrize(
    ("plan", "architecture", "message"),
    [
        ({"seed": 2}, {}, r"another seed \(was 1, is 2\);"),
        ({"max_steps": 30}, {}, r"another max_steps \(was 20, is 30\);"),
        ({"token_budget": 64, "clip_norm": 0.5}, {}, r"another token_budget .*, clip_norm \(was 1.0, is 0.5\);"),
        ({"schedule": Schedule(1e-3, 5)}, {}, r"another schedule \(was .*0.003.*, is .*0.001"),
        ({"shares": {}}, {}, r"another shares \(was {'often': 1.5}, is {}\);"),
        ({}, {"dropout": 0.2}, r"another dropout \(was 0.1, is 0.2\);"),
        ({}, {"heads": 2}, r"another heads \(was 4, is 2\);"),  # no tensor has another shape
        ({}, {"d_ff": 128}, r"another d_ff \(was 64, is 128\);"),
    ],
)
def test_resuming_with_other_settings_is_refused_by_name(
    uninterrupted: Run, plan: dict[str, Any], architecture: dict[str, Any], message: str
) -> None:
    before = (uninterrupted.folder / "work" / STATE_FILE).read_bytes()
    with pytest.raises(TrainingError, match=message):
        uninterrupted.trainer(dataclasses.replace(PLAN, **plan), **architecture).run(toy_pairs(), VALID)
    assert (uninterrupted.folder / "work" / STATE_FILE).read_bytes() == before


def test_resuming_with_another_corpus_is_refused(uninterrupted: Run) -> None:
    with pytest.raises(TrainingError, match=r"another pairs \(was 30, is 29\), target_tokens"):
        uninterrupted.trainer().run(toy_pairs(29), VALID)


# --- one step, and the end


def test_every_step_has_the_scheduled_rate_and_clipped_gradients(run: Run) -> None:
    trainer = run.trainer(dataclasses.replace(PLAN, clip_norm=0.25))
    rates, lengths = [], []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        lengths.append(
            float(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]).norm())
        )

    trainer.optimizer.register_step_pre_hook(record)
    assert trainer.run(toy_pairs(), VALID)
    assert rates == pytest.approx([PLAN.schedule.rate(step, step / STEPS) for step in range(STEPS)])
    assert max(lengths) == pytest.approx(0.25, rel=1e-4)


def test_the_checkpoint_is_the_mean_over_the_end_of_the_run(run: Run) -> None:
    trainer = run.trainer()
    history: list[dict[str, Tensor]] = []
    trainer.optimizer.register_step_post_hook(
        lambda *_: history.append({name: tensor.clone() for name, tensor in own_weights(trainer.model).items()})
    )
    assert trainer.run(toy_pairs(), VALID)
    averaged = [history[step - 1] for step in (9, 12, 15, 18)]  # every third of the last 60 % of 20
    for name, tensor in run.saved_weights().items():
        mean = torch.stack([weights[name] for weights in averaged]).mean(dim=0)
        torch.testing.assert_close(tensor, mean.half().float(), rtol=1e-3, atol=1e-6)
        assert not torch.allclose(tensor, history[-1][name], rtol=1e-3, atol=1e-6), name


def test_a_run_too_short_to_average_saves_its_last_weights(run: Run) -> None:
    trainer = run.trainer(dataclasses.replace(PLAN, max_steps=2))
    assert trainer.run(toy_pairs(), VALID)
    for name, tensor in own_weights(trainer.model).items():
        assert torch.equal(run.saved_weights()[name], tensor.half().float())


def test_a_run_ends_at_the_first_of_two_limits(run: Run) -> None:
    trainer = run.trainer(dataclasses.replace(PLAN, max_steps=1000, max_minutes=10.0))
    trainer.progress.step, trainer.progress.seconds = 100, 300.0
    assert trainer.done() == 0.5
    trainer.progress.step = 700
    assert trainer.done() == 0.7
    trainer.progress.seconds = 601.0
    assert trainer.done() == 1.0


def test_a_run_ends_at_its_limit_in_minutes(run: Run) -> None:
    trainer = run.trainer(dataclasses.replace(PLAN, max_steps=None, max_minutes=0.003))
    assert trainer.run(toy_pairs(), VALID)
    assert 0.18 < trainer.progress.seconds < 5
    assert trainer.progress.step > 0


def test_a_plan_without_a_limit_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="the plan must have max_steps or max_minutes, has neither"):
        run.trainer(dataclasses.replace(PLAN, max_steps=None))


@pytest.mark.parametrize("pairs", [[], [EncodedPair("never", [5, 2], [6, 2])]])
def test_a_run_with_nothing_to_train_on_is_refused(run: Run, pairs: list[EncodedPair]) -> None:
    with pytest.raises(TrainingError, match="no pairs left to train on"):
        run.trainer(dataclasses.replace(PLAN, shares={"never": 0.0})).run(pairs, VALID)


def test_a_nan_loss_ends_the_run_before_the_update(run: Run) -> None:
    trainer = run.trainer()
    own_weights(trainer.model)["encoder_norm.bias"][0] = torch.nan
    before = {name: tensor.clone() for name, tensor in own_weights(trainer.model).items()}
    with pytest.raises(TrainingError, match="the loss is nan at step 0"):
        trainer.run(toy_pairs(), VALID)
    for name, tensor in own_weights(trainer.model).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_an_infinite_gradient_ends_the_run_before_the_update(run: Run) -> None:
    trainer = run.trainer()
    dict(trainer.model.named_parameters())["encoder_norm.bias"].register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(TrainingError, match=r"the gradient is (nan|inf) at step 0"):
        trainer.run(toy_pairs(), VALID)
    assert all(tensor.isfinite().all() for tensor in own_weights(trainer.model).values())


# --- the command, from texts to translations


def reversal(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences of up to four words, and the same words in reverse order."""
    rng = random.Random(seed)
    rows = [[rng.choice(WORDS) for _ in range(rng.randint(1, 4))] for _ in range(count)]
    return [(" ".join(words).capitalize(), " ".join(reversed(words))) for words in rows]


class Reversal:
    """Learning the reversal of words with `dragoman train`."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.log = folder / "out.training" / "log.jsonl"
        for name, count in (("train", 8000), ("valid", 40)):
            lines = [f"toy\t{source}\t{target}\n" for source, target in reversal(count, seed=count)]
            (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
        files = [str(folder / "train.tsv"), str(folder / "valid.tsv"), str(self.out)]
        size = ["--preset=tiny", f"--vocabulary={PIECES}", "--max-tokens=32", "--dropout=0"]
        course = ["--steps=450", "--token-budget=512", "--peak-rate=4e-3", "--warmup-steps=80"]
        self.arguments = [*files, *size, *course, "--threads=1", "--source-language=en", "--target-language=fr"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Reversal:
    return Reversal(tmp_path_factory.mktemp("reversal"))


@pytest.fixture(scope="module")
def stopped(task: Reversal) -> subprocess.CompletedProcess[str]:
    """The command in a separate process, after a SIGTERM during training."""
    program = "from dragoman.model.training.command import train; train()"
    command = [sys.executable, "-c", program, *task.arguments]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            end = time.monotonic() + 120
            while not task.log.exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            process.terminate()
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def test_sigterm_saves_the_state_and_ends_the_command(
    task: Reversal, stopped: subprocess.CompletedProcess[str]
) -> None:
    assert stopped.returncode == 1, stopped.stderr
    assert "8,000 of 8,000 pairs have a suitable length" in stopped.stderr
    assert "the same command resumes the run" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert (task.log.parent / STATE_FILE).is_file()
    assert not task.out.exists()


def test_the_same_command_resumes_and_learns_the_task(
    task: Reversal, stopped: subprocess.CompletedProcess[str]
) -> None:
    result = CliRunner().invoke(train, task.arguments)
    assert result.exit_code == 0, result.output
    assert "resuming from step " in result.output
    assert "learning" not in result.output  # the vocabulary exists already
    assert "450" in task.log.read_text()
    checkpoint = load_checkpoint(task.out)
    assert checkpoint.config.source_languages == ("en",)
    unseen = reversal(80, seed=1)
    translations = translate_all(
        checkpoint.model, checkpoint.tokenizer, checkpoint.config.decoding, [source for source, _ in unseen]
    )
    right = sum(found == target for found, (_, target) in zip(translations, unseen, strict=True))
    assert right >= 0.8 * len(unseen), (right, translations[:5])
