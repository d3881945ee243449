"""Stage 2: supervised fine-tuning on self-play gives the model a world model (paper, Eq. 1-2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spa.agent.player import Player, make_task
from spa.agent.worlds import WorldSource
from spa.evaluate.world_model import world_model_metrics
from spa.models.forward import hidden_states, micro_batches, pad_right, token_logprobs
from spa.models.load import load_state, save_model
from spa.models.optim import adamw, lr_factor, set_lr
from spa.runs.checkpoints import checkpoint_folder, latest_checkpoint, prune_checkpoints
from spa.runs.progress import note, progress
from spa.runs.schema import Config, SFTConfig
from spa.runs.seeds import PROBE, stream_seed
from spa.worldmodel.dataset import read_rows
from spa.worldmodel.encode import Example, encode_rows

Log = Callable[[int, dict[str, float]], None]


class SFTDiverged(ValueError):
    """The loss or its gradient became infinite or not a number."""


def loss_sums(model: Any, examples: Sequence[Example], max_tokens: int) -> Iterator[torch.Tensor]:
    """Summed negative log-likelihood of the trained tokens, micro-batch by micro-batch."""
    for group in micro_batches([len(example.ids) for example in examples], max_tokens):
        ids_BT = pad_right([examples[i].ids for i in group], device=model.device)
        chosen_BT = torch.zeros(ids_BT.shape, dtype=torch.bool)
        for row, i in enumerate(group):
            chosen_BT[row, examples[i].positions] = True
        chosen_BT = chosen_BT.to(model.device)
        hidden = hidden_states(model, ids_BT)[:, :-1][chosen_BT[:, 1:]]
        logprobs, _ = token_logprobs(model, hidden, ids_BT[chosen_BT])
        yield -logprobs.sum()


@torch.no_grad()
def mean_loss(model: Any, examples: Sequence[Example], max_tokens: int) -> float:
    """Mean negative log-likelihood over all trained tokens."""
    tokens = sum(len(example.positions) for example in examples)
    return sum(float(part) for part in loss_sums(model, examples, max_tokens)) / tokens


class SFTTrainer:
    """Trains ``model`` on ``train``; checkpoints and resume are exact, mid-epoch too.

    The loss of an optimizer step is the mean over all trained tokens of its rows, however they are cut into micro-batches.
    The order of rows depends on (seed, epoch) alone, so a resumed run needs no random state.
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
        on_step: Callable[[int, float], None] = lambda step, loss: None,
    ) -> None:
        if config.epochs < 1 or config.batch_size < 1:
            raise ValueError("sft.epochs and sft.batch_size must be at least 1")
        self.model, self.tokenizer = model, tokenizer
        self.train_set, self.val_set = train, val
        self.config, self.out, self.seed = config, out, seed
        self.log, self.on_step = log, on_step
        self.per_epoch = -(-len(train) // config.batch_size)
        self.total = self.per_epoch * config.epochs
        self.warmup = int(config.warmup_fraction * self.total)
        lr_factor(
            0, warmup=self.warmup, total=self.total, schedule=config.schedule
        )  # refuses an unknown schedule early
        self.optimizer = adamw([(model.parameters(), config.lr)], betas=config.betas, weight_decay=config.weight_decay)
        self.step = 0

    def train(self, *, resume: bool = False) -> Path:
        """Runs to the end; returns the last checkpoint's folder.

        Raises:
            SFTDiverged: a loss or gradient that is not finite (names the last good checkpoint).
        """
        found = latest_checkpoint(self.out) if resume else None
        if found:
            state = load_state(found[1])
            self.step = int(state["step"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.model.train()
        while self.step < self.total:
            epoch, within = divmod(self.step, self.per_epoch)
            order = np.random.default_rng(np.random.SeedSequence([self.seed, epoch])).permutation(len(self.train_set))
            size = self.config.batch_size
            metrics = self._one_step([self.train_set[i] for i in order[within * size : (within + 1) * size]])
            self.step += 1
            ended = self.step % self.per_epoch == 0
            if ended and self.val_set:
                metrics["val/loss"] = mean_loss(self.model, self.val_set, self.config.micro_batch_tokens)
            if ended or self.step % self.config.log_every == 0 or self.step == 1:
                self.log(self.step, {"train/epoch": self.step / self.per_epoch, **metrics})
            self.on_step(self.step, metrics["train/loss"])
            if self.step == self.total or (
                self.step % self.config.save_every == 0 if self.config.save_every else ended
            ):
                self._save()
        return checkpoint_folder(self.out, self.step)

    def _one_step(self, batch: Sequence[Example]) -> dict[str, float]:
        started = time.perf_counter()
        factor = lr_factor(self.step, warmup=self.warmup, total=self.total, schedule=self.config.schedule)
        set_lr(self.optimizer, factor)
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(len(example.positions) for example in batch)
        loss = 0.0
        for part in loss_sums(self.model, batch, self.config.micro_batch_tokens):
            (part / tokens).backward()
            loss += float(part.detach()) / tokens
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        if not (np.isfinite(loss) and bool(torch.isfinite(norm))):
            found = latest_checkpoint(self.out)
            where = f"the last good checkpoint is {found[1]}" if found else "no checkpoint was saved before"
            raise SFTDiverged(f"SFT diverged at step {self.step + 1} (loss {loss}); {where}. Lower sft.lr")
        self.optimizer.step()
        seconds = time.perf_counter() - started
        return {
            "train/loss": loss,
            "train/grad_norm": float(norm),
            "train/lr": self.config.lr * factor,
            "train/tokens_per_second": sum(len(example.ids) for example in batch) / seconds,
        }

    def _save(self) -> None:
        state = {"step": self.step, "optimizer": self.optimizer.state_dict()}
        save_model(self.model, self.tokenizer, checkpoint_folder(self.out, self.step), state)
        prune_checkpoints(self.out, self.config.keep_checkpoints)


def data_files(data: Path) -> tuple[Path, Path | None]:
    """The training and, where there is one, the validation file of a folder of stage 1 or of a single parquet.

    Raises:
        ValueError: neither is there.
    """
    if data.is_file():
        return data, None
    train, val = data / "train.parquet", data / "val.parquet"
    if not train.is_file():
        raise ValueError(f"no training data: {data} holds no train.parquet; run `spa generate` first or set sft.data")
    return train, val if val.is_file() else None


def run_sft(cfg: Config, out: Path, *, data: Path, resume: bool, log: Log) -> Path:
    """Stage 2 on the data of stage 1 (a folder, or one parquet file); returns the folder of the final model.

    Raises:
        ValueError: data that cannot be read or trained on, a model that cannot be loaded, divergence.
    """
    train_file, val_file = data_files(data)
    rows, skipped = read_rows(train_file)
    found = latest_checkpoint(out) if resume else None
    player = Player.load(cfg, str(found[1]) if found else None)
    settings = {"loss": cfg.sft.loss, "train_end": cfg.sft.train_end, "max_length": cfg.sft.max_length}
    train, reasons = encode_rows(rows, player.chat, **settings, skipped=skipped)  # type: ignore[arg-type]
    for reason, count in reasons.items():
        note(f"SFT: {count} rows of {train_file.name} skipped: {reason}")
    val: list[Example] = []
    if val_file is not None and (val_rows := read_rows(val_file)[0]):
        val, _ = encode_rows(val_rows, player.chat, **settings)  # type: ignore[arg-type]
    with progress(cfg.sft.epochs * -(-len(train) // cfg.sft.batch_size), "SFT") as bar:
        trainer = SFTTrainer(
            player.model,
            player.tokenizer,
            train,
            val,
            cfg.sft,
            out,
            seed=cfg.seeds.run,
            log=log,
            on_step=lambda step, loss: bar.advance(1, loss=loss),
        )
        if found:
            bar.advance(found[0])
        folder = trainer.train(resume=resume)
    if cfg.sft.eval_worlds:
        log(trainer.step, probe_world_model(cfg, player))
    return folder


def probe_world_model(cfg: Config, player: Player) -> dict[str, float]:
    """World-model accuracy on validation worlds, in the format of the self-play data."""
    task = make_task(cfg, state_format=cfg.selfplay.state_format, prompt="world_model")
    worlds = WorldSource(task, "val", cfg.seeds.val, unique=True).take(cfg.sft.eval_worlds)
    return world_model_metrics(player.play(task, worlds, samples=1, seed=stream_seed(cfg.seeds.run, PROBE, 0)))
