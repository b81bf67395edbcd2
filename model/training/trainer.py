"""The training loop: steps, validation, weight averaging, and resumption after an interruption."""

import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from dragoman.bundle.tokenizers import SentencePieceTokenizer
from dragoman.model.checkpoint import load_weights, own_weights, save_checkpoint
from dragoman.model.config import CheckpointConfig
from dragoman.model.greedy import pad
from dragoman.model.training.corpus import Batch, EncodedPair, Pair, epoch_batches
from dragoman.model.training.evaluation import evaluate
from dragoman.model.training.schedule import Schedule
from dragoman.model.transformer import Transformer

STATE_FILE = "state.pt"
LOG_FILE = "log.jsonl"


class TrainingError(Exception):
    """A run that cannot start or continue; the message gives the reason."""


@dataclass(frozen=True)
class TrainingPlan:
    """All settings of a run, apart from model and data. A run resumes only under the plan of its start."""

    schedule: Schedule
    max_steps: int | None
    """Total number of updates; the run ends at the first of the two limits."""
    max_minutes: float | None
    """Total minutes of training, without interruptions."""
    token_budget: int = 3072
    """Largest number of padded target tokens per batch."""
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    """Gradients with a larger norm are scaled down to it."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """How often each domain occurs in an epoch. Default: 1."""
    average_part: float = 0.08
    """The final weights are the mean over this last fraction of the run."""
    average_every: int = 25
    """Steps between two samples of the weights for the mean."""
    validate_minutes: float = 15.0
    save_minutes: float = 5.0
    seed: int = 1
    bfloat16: bool = True
    """Forward and backward in bfloat16 for the operations that PyTorch's autocast allows; weights stay float32."""


@dataclass
class Progress:
    """The progress of a run."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Completed batches of this epoch."""
    seconds: float = 0.0
    averaged: int = 0
    """Samples of the weights in the mean so far."""


class Trainer:
    """Trains one model. The state to resume from is kept in `work`; the checkpoint goes to `out`."""

    def __init__(
        self,
        model: Transformer,
        config: CheckpointConfig,
        tokenizer_folder: Path,
        plan: TrainingPlan,
        out: Path,
        work: Path,
    ) -> None:
        if plan.max_steps is None and plan.max_minutes is None:
            raise ValueError("the plan must have max_steps or max_minutes, has neither")
        self.model = model
        self.config = config
        self.tokenizer_folder = tokenizer_folder
        self.tokenizer = SentencePieceTokenizer(tokenizer_folder)
        self.plan = plan
        self.out = out
        self.work = work
        self.progress = Progress()
        self.mean = {name: torch.zeros_like(tensor) for name, tensor in own_weights(model).items()}
        self.optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        self._stopping = False

    # --- the run

    def run(self, pairs: Sequence[EncodedPair], valid: Sequence[Pair]) -> bool:
        """Train until the plan is complete, and write the checkpoint. Returns False if a signal stopped the run.

        On SIGINT or SIGTERM the state is saved after the current step, and the next run resumes from it. A run that is
        already complete only writes its checkpoint again. Raises TrainingError if there is nothing to train on, if
        `work` has the state of a run with other settings, or if the loss or a gradient is not finite.
        """
        if not any(self.plan.shares.get(pair.domain, 1.0) > 0 for pair in pairs):
            raise TrainingError("no pairs left to train on: each is too long or too uneven, or has share 0")
        self.work.mkdir(parents=True, exist_ok=True)
        settings = self._settings(pairs)
        self._resume(settings)
        with self._stop_on_signal(), self._bar() as bar:
            last_save = last_validation = time.monotonic()
            for batch in self._batches(pairs):
                started = time.monotonic()
                loss, tokens = self._step(batch)
                now = time.monotonic()
                self.progress.seconds += now - started
                self._show(bar, loss, tokens / (now - started))
                self._average()
                validating = now - last_validation > self.plan.validate_minutes * 60
                # Validation takes minutes, in which the user may kill the run: save before it.
                if self._stopping or validating or now - last_save > self.plan.save_minutes * 60:
                    self._save(settings)
                    last_save = time.monotonic()
                if self._stopping:
                    return False
                if validating:
                    self._validate(valid)
                    last_validation = time.monotonic()
            self._save(settings)
        self._validate(valid)
        save_checkpoint(self.out, self.config, self._best_weights(), self.tokenizer_folder)
        return True

    def done(self) -> float:
        """The completed fraction of the run, from 0 to 1."""
        by_steps = self.progress.step / self.plan.max_steps if self.plan.max_steps else 0.0
        by_time = self.progress.seconds / (self.plan.max_minutes * 60) if self.plan.max_minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def _batches(self, pairs: Sequence[EncodedPair]) -> Iterator[Batch]:
        plan, progress = self.plan, self.progress
        while True:
            batches = epoch_batches(pairs, plan.shares, plan.token_budget, plan.seed, progress.epoch)
            for batch in batches[progress.batch :]:
                if self.done() >= 1.0:
                    return
                yield batch
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def _step(self, batch: Batch) -> tuple[float, int]:
        """One update. Returns the loss in nats per token, and the number of target tokens."""
        pad_id = self.config.decoding.pad_id
        source, source_lengths = pad([pair.source for pair in batch], pad_id)
        labels, target_lengths = pad([pair.target for pair in batch], pad_id)
        start = torch.full((len(batch), 1), self.config.decoding.start_id)
        target = torch.cat((start, labels[:, :-1]), dim=1)
        real = torch.arange(labels.shape[1]) < target_lengths[:, None]

        rate = self.plan.schedule.rate(self.progress.step, self.done())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.plan.bfloat16):
            states = self.model.encode(source, source_lengths)
            hidden = self.model.decode(target, states, source_lengths)
            logits = self.model.projection(hidden[real])
        loss = functional.cross_entropy(logits.float(), labels[real], label_smoothing=self.plan.label_smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradient = nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip_norm)
        for name, value in (("loss", loss), ("gradient", gradient)):
            if not torch.isfinite(value):
                raise TrainingError(
                    f"the {name} is {value.item()} at step {self.progress.step}; start over with a lower peak rate"
                )
        self.optimizer.step()
        self.progress.step += 1
        self.progress.batch += 1
        return loss.item(), int(target_lengths.sum())

    # --- averaging and validation

    def _average(self) -> None:
        if self.done() < 1.0 - self.plan.average_part or self.progress.step % self.plan.average_every:
            return
        self.progress.averaged += 1
        for name, tensor in own_weights(self.model).items():
            self.mean[name].lerp_(tensor, 1.0 / self.progress.averaged)

    def _best_weights(self) -> Mapping[str, Tensor]:
        return self.mean if self.progress.averaged else own_weights(self.model)

    def _validate(self, valid: Sequence[Pair]) -> None:
        current = {name: tensor.clone() for name, tensor in own_weights(self.model).items()}
        load_weights(self.model, self._best_weights(), where="mean weights")
        self.model.eval()
        scores = evaluate(self.model, self.tokenizer, self.config.decoding, valid)
        load_weights(self.model, current, where="current weights")
        for score in scores:
            tqdm.write(f"  {score.domain:<10} BLEU {score.bleu:5.1f}  chrF {score.chrf:5.1f}  ({score.pairs} pairs)")
        self._log(scores=[asdict(score) for score in scores])

    # --- progress on the terminal and in the log

    def _bar(self) -> "tqdm[Any]":
        return tqdm(
            total=1.0,
            initial=self.done(),
            disable=None,
            bar_format="{percentage:5.1f}%|{bar}| {elapsed}<{remaining} {postfix}",
        )

    def _show(self, bar: "tqdm[Any]", loss: float, speed: float) -> None:
        bar.update(self.done() - bar.n)
        bar.set_postfix_str(f"step {self.progress.step}, loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
        if self.progress.step % 100 == 0:
            self._log(loss=round(loss, 4), tokens_per_second=round(speed))
            if bar.disable:
                left = self.progress.seconds * (1 / self.done() - 1)
                text = f"{self.done():6.1%}  step {self.progress.step}  loss {loss:.3f}  {speed:,.0f} tokens/s"
                print(f"{text}  {left / 60:.0f} min left", flush=True)

    def _log(self, **values: Any) -> None:
        with (self.work / LOG_FILE).open("a") as log:
            log.write(json.dumps({**asdict(self.progress), **values}) + "\n")

    # --- interruption and resumption

    def _settings(self, pairs: Sequence[EncodedPair]) -> dict[str, dict[str, Any]]:
        """Settings that must not change between a run and its resumption."""
        return {
            "plan": asdict(self.plan),
            "architecture": asdict(self.config.architecture),
            "corpus": {"pairs": len(pairs), "target_tokens": sum(len(pair.target) for pair in pairs)},
        }

    def _save(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        partial = self.work / (STATE_FILE + ".partial")
        state = {
            **settings,
            "progress": asdict(self.progress),
            "model": own_weights(self.model),
            "mean": self.mean,
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        torch.save(state, partial)
        partial.replace(self.work / STATE_FILE)

    def _resume(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        path = self.work / STATE_FILE
        if not path.is_file():
            torch.manual_seed(self.plan.seed)
            return
        state = torch.load(path, weights_only=True)
        changed = [
            f"{name} (was {state[group].get(name)}, is {value})"
            for group, values in settings.items()
            if group in state  # an older version saved fewer groups
            for name, value in values.items()
            if state[group].get(name) != value
        ]
        if changed:
            raise TrainingError(
                f"{path} has another {', '.join(changed)}; "
                "use the same settings to resume, or another --work to start over"
            )
        load_weights(self.model, state["model"], where=str(path))
        self.mean = state["mean"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        torch.set_rng_state(state["random"])
        step = self.progress.step
        if self.done() >= 1.0:
            print(f"this run is complete at step {step}; use another --work for more training", file=sys.stderr)
        else:
            print(f"resuming from step {step} ({self.done():.1%} done)", file=sys.stderr)

    @contextmanager
    def _stop_on_signal(self) -> Iterator[None]:
        def stop(_signal: int, _frame: FrameType | None) -> None:
            self._stopping = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
