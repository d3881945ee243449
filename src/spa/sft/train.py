"""Stage 2: supervised fine-tuning on self-play gives the model a world model (paper, Eq. 1-2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spa.common.checkpoints import check_best, checkpoint_folder, latest_checkpoint, prune_checkpoints
from spa.common.clock import measuring, work_stored
from spa.common.progress import note
from spa.config.schema import SFTConfig
from spa.data.encode import Example
from spa.models.forward import evaluating
from spa.models.load import load_sharded, load_state, save_checkpoint, save_model
from spa.models.lora import adapter_state, has_lora, load_adapter_state
from spa.models.optim import adamw, clip_norm, lr_factor, set_lr
from spa.models.score import batches, prepare, score
from spa.scale import ranks

Log = Callable[[int, dict[str, float]], None]


class SFTDiverged(ValueError):
    """The loss or its gradient became infinite or not a number."""


def loss_sums(
    model: Any, examples: Sequence[Example], max_tokens: int, *, packing: bool = False, precision: str = "float32"
) -> Iterator[Tensor]:
    """Yields the summed negative log-likelihood of the trained tokens, one forward pass at a time: those of this rank.

    Each pass takes examples of at most ``max_tokens`` tokens in total, including any padding.
    With ``packing`` the model must have been prepared by ``models.score.prepare``.
    """
    for batch in batches(examples, max_tokens, model.device, packing=packing, divide=True):
        loss = -score(model, batch, precision=precision).logprobs_N.sum()
        yield loss if batch.counts else 0 * loss


@torch.no_grad()
def mean_loss(
    model: Any, examples: Sequence[Example], max_tokens: int, *, packing: bool = False, precision: str = "float32"
) -> float:
    """Mean negative log-likelihood over all trained tokens, without dropout."""
    tokens = sum(len(example.positions) for example in examples)
    with evaluating(model):
        parts = loss_sums(model, examples, max_tokens, packing=packing, precision=precision)
        sums = {"loss": sum(float(part) for part in parts) / tokens}
        ranks.add(sums)
    return sums["loss"]


class SFTTrainer:
    """Trains ``model`` on ``train``; resuming from a checkpoint is exact, even mid-epoch.

    The loss of an optimizer step is the mean over all trained tokens of its rows, however they are split into forward passes.
    The order of rows and the dropout of a step depend on (seed, step) alone, so resuming needs no saved random state. LoRA
    adapters must already be in the model.

    Args:
        val: examples whose mean loss selects the best checkpoint and triggers early stopping; may be empty.
        log: called with (step, metrics).
        measure: returns metrics of the model at a step, logged every ``sft.eval_every`` steps.

    ``on_step``, if set, is called with (step, loss) after every step.

    Raises:
        ValueError: settings that need validation data when there is none, or a model that cannot be packed.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        train: Sequence[Example],
        val: Sequence[Example],
        config: SFTConfig,
        out: Path,
        *,
        seed: int,
        log: Log,
        measure: Callable[[int], dict[str, float]] | None = None,
    ) -> None:
        check_validation(config, bool(val))
        self.model, self.tokenizer = model, tokenizer
        self.train_set, self.val_set = train, val
        self.config, self.out, self.seed = config, out, seed
        self.log, self.measure = log, measure
        self.on_step: Callable[[int, float], None] = lambda step, loss: None
        # An example may hold several rows; a step takes enough examples for about ``batch_size`` rows.
        self.step_size = max(1, round(config.batch_size * len(train) / max(1, sum(e.rows for e in train))))
        self.per_epoch = -(-len(train) // self.step_size)
        self.total = self.per_epoch * config.epochs
        prepare(model, "sft", packing=config.packing, compile=config.compile)
        ranks.shard(model, precision=config.precision)
        self.optimizer = adamw([(model.parameters(), config.lr)], betas=config.betas, weight_decay=config.weight_decay)
        self.step = 0
        self.best_loss, self.best_step, self.stale = float("inf"), 0, 0

    def train(self, *, resume: bool = False) -> Path:
        """Trains to the end or until validation stops improving; returns the folder of the last or best checkpoint.

        Raises:
            SFTDiverged: a loss or gradient is not finite (names the last good checkpoint).
            ValueError: the best checkpoint is damaged.
        """
        checkpoint = ranks.on_main(lambda: latest_checkpoint(self.out) if resume else None)
        if checkpoint:
            self._restore(checkpoint[1])
        self.model.train()
        while self.step < self.total and not self._stopped():
            ranks.set_place(f"SFT step {self.step + 1}")
            epoch, within = divmod(self.step, self.per_epoch)
            order = np.random.default_rng(np.random.SeedSequence([self.seed, epoch])).permutation(len(self.train_set))
            size = self.step_size
            metrics = self._one_step([self.train_set[i] for i in order[within * size : (within + 1) * size]])
            self.step += 1
            ended = self.step % self.per_epoch == 0
            if self._due(self.config.val_every, ended) and self.val_set:
                metrics["val/loss"] = self._validate()
            measured = self._measured()
            regular = self.step == 1 or self.step % self.config.log_every == 0
            if regular or ended or measured or "val/loss" in metrics:
                self.log(self.step, {"train/epoch": self.step / self.per_epoch, **metrics, **measured})
            self.on_step(self.step, metrics["train/loss"])
            improved = self.best_step == self.step and (self.config.use == "best" or self.config.patience > 0)
            if improved or self._stopped() or self._due(self.config.save_every, ended):
                self._save()
        if self._stopped() and self.step < self.total:
            note(
                f"SFT: stopped early at step {self.step} of {self.total}; best validation loss at step {self.best_step}"
            )
        if self.config.use == "best":
            return ranks.on_main(lambda: check_best(self.out, self.best_step))
        return checkpoint_folder(self.out, self.step)

    def _due(self, every: int, epoch_ended: bool) -> bool:
        """Whether something done every ``every`` steps (0: every epoch) is due; it always is at the end."""
        return self.step == self.total or (self.step % every == 0 if every else epoch_ended)

    def _stopped(self) -> bool:
        return 0 < self.config.patience <= self.stale

    def _factor(self, step: int) -> float:
        config = self.config
        warmup, decay = int(config.warmup_fraction * self.total), int(config.decay_fraction * self.total)
        return lr_factor(step, warmup=warmup, total=self.total, schedule=config.schedule, decay=decay)

    def _one_step(self, batch: Sequence[Example]) -> dict[str, float]:
        started = time.perf_counter()
        config, factor = self.config, self._factor(self.step)
        set_lr(self.optimizer, factor)
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(len(example.positions) for example in batch)
        sums = {"loss": 0.0}
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            seed = int(np.random.SeedSequence([self.seed, self.step]).generate_state(1)[0])
            torch.manual_seed(seed + ranks.rank())  # for dropout, if any: each rank has other rows
            parts = loss_sums(
                self.model, batch, config.micro_batch_tokens, packing=config.packing, precision=config.precision
            )
            for part in parts:
                (part / tokens).backward()
                sums["loss"] += float(part.detach()) / tokens
        here = sums["loss"]
        ranks.add(sums)
        loss = sums["loss"]
        norm = clip_norm(self.model.parameters(), config.max_grad_norm)
        if not (np.isfinite(loss) and np.isfinite(norm)):
            checkpoint = latest_checkpoint(self.out)
            where = f"the last good checkpoint is {checkpoint[1]}" if checkpoint else "no checkpoint was saved before"
            at = f"{self.step + 1}{ranks.not_finite(here)}"
            raise SFTDiverged(f"SFT diverged at step {at} (loss {loss}); {where}. Lower sft.lr")
        self.optimizer.step()
        seconds = time.perf_counter() - started
        return {
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/lr": config.lr * factor,
            "train/tokens_per_second": sum(len(example.ids) for example in batch) / seconds,
        }

    @measuring()
    def _validate(self) -> float:
        config = self.config
        loss = mean_loss(
            self.model, self.val_set, config.micro_batch_tokens, packing=config.packing, precision=config.precision
        )
        if loss < self.best_loss:
            self.best_loss, self.best_step, self.stale = loss, self.step, 0
        else:
            self.stale += 1
        return loss

    def _measured(self) -> dict[str, float]:
        every = self.config.eval_every
        if not every or self.step % every or self.step == self.total or self.measure is None:
            return {}  # the stage measures after training
        return self.measure(self.step)

    def _save(self) -> None:
        state: dict[str, Any] = {
            "step": self.step,
            "best_loss": self.best_loss,
            "best_step": self.best_step,
            "stale": self.stale,
        }
        folder = checkpoint_folder(self.out, self.step)
        if ranks.world() > 1:
            save_checkpoint(self.model, self.tokenizer, folder, state, self.optimizer, self._modules())
        else:
            state["optimizer"] = self.optimizer.state_dict()
            if has_lora(self.model):
                state["lora"] = adapter_state(self.model)
            save_model(self.model, self.tokenizer, folder, state)
        work_stored()
        self._prune()

    def _prune(self) -> None:
        keep_best = self.config.use == "best" or self.config.patience > 0
        always = (self.best_step,) if keep_best else ()
        ranks.on_main(lambda: prune_checkpoints(self.out, self.config.keep_checkpoints, always, newest=self.step))

    def _modules(self) -> dict[str, Any]:
        return {"adapters": self.model} if has_lora(self.model) else {}

    def _restore(self, folder: Path) -> None:
        state = load_state(folder)
        if "optimizer" in state:
            if has_lora(self.model):
                load_adapter_state(self.model, state.get("lora", {}))
            ranks.load_optimizer(self.optimizer, state["optimizer"])
        load_sharded(folder, self.optimizer, self._modules())
        self.step = int(state["step"])
        self.best_loss, self.best_step = float(state["best_loss"]), int(state["best_step"])
        self.stale = int(state["stale"])
        self._prune()  # a killed process may have saved without


def check_validation(config: SFTConfig, has_val: bool, data: Path | None = None) -> None:
    """Raises ValueError for settings that need validation rows when there are none; ``data``: where rows were given."""
    remedy = "give a folder with train.parquet and val.parquet" if data else "set selfplay.val_fraction above 0"
    for name, wanted in (("sft.use=best", config.use == "best"), (f"sft.patience={config.patience}", config.patience)):
        if wanted and not has_val:
            raise ValueError(f"{name} needs validation rows, and there are none: {remedy}")
