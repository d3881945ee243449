"""``spa sft``: combines the data, model and trainer of stage 2."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from spa.agent.chat import Chat
from spa.agent.policy import Policy, local_engine
from spa.agent.response import forced_tag
from spa.common.checkpoints import latest_checkpoint
from spa.common.clock import measuring
from spa.common.progress import note, progress
from spa.config.schema import Config
from spa.config.seeds import PROBE, stream_seed
from spa.data.encode import Example, encode_rows
from spa.data.layouts import data_files, read_rows
from spa.models.load import context_length, load_config, load_tokenizer
from spa.models.lora import add_lora
from spa.scale import ranks
from spa.sft.memory import check_memory
from spa.sft.prediction_samples import Measured, shown
from spa.sft.train import Log, SFTTrainer, check_validation


def history(cfg: Config) -> int:
    """Turns of history in a row's prompt: ``sft.window``, or ``agent.window`` if that is null; 1 in transition rows, since a
    planner asks about states that have no history."""
    if cfg.selfplay.rows == "transitions":
        return 1
    return cfg.agent.window if cfg.sft.window is None else cfg.sft.window


def load_examples(cfg: Config, data: Path, chat: Chat) -> tuple[list[Example], list[Example]]:
    """Training and validation examples of stage 1's data; reports how many rows were skipped, and why.

    Raises:
        ValueError: an unreadable file, no trainable row, or settings that need validation rows when there are none.
    """
    context = context_length(load_config(cfg.model.path, cfg.model))
    sets: list[list[Example]] = []
    for path in data_files(data):
        rows, skipped = read_rows(path)[:2] if path is not None else ([], Counter[str]())
        examples, reasons = encode_rows(rows, chat, cfg.sft, skipped, context, required=not sets)
        total = len(rows) + skipped.total()
        for reason, count in reasons.items():
            note(f"SFT: {count} of {total} rows of {path.name if path else data} skipped: {reason}")
        sets.append(examples)
    check_validation(cfg.sft, bool(sets[1]), data if data.is_file() else None)
    return sets[0], sets[1]


def run_sft(cfg: Config, out: Path, *, data: Path, resume: bool, log: Log) -> Path:
    """Stage 2 on the data of stage 1 (a folder, or one data file); returns the folder of the model that stage 3 starts from.

    Raises:
        ValueError: data that cannot be read or trained on, a model that cannot be loaded or does not fit, divergence.
    """
    sft = cfg.sft
    chat = Chat(load_tokenizer(cfg.model.path, cfg.model), forced=forced_tag(cfg.agent.think))
    train, val = load_examples(cfg, data, chat)
    check_memory(cfg, max(len(example.ids) for example in train))
    checkpoint = ranks.on_main(lambda: latest_checkpoint(out) if resume else None)
    # With LoRA the checkpoint holds merged weights: training resumes from the base and the adapters.
    engine = local_engine(cfg) if sft.eval_worlds else None  # else nothing is played
    start = str(checkpoint[1]) if checkpoint and not sft.lora_rank else None
    policy = Policy.load(cfg, start, engine=engine, trained=True, precision=sft.precision)
    if sft.lora_rank:
        add_lora(policy.model, sft, sft.lora_rank, cfg.seeds.run)
    trainer = SFTTrainer(
        policy.model,
        policy.tokenizer,
        train,
        val,
        sft,
        out,
        seed=cfg.seeds.run,
        log=log,
        measure=lambda step: measure(cfg, policy)[0] if sft.eval_worlds else {},
    )
    before = measure(cfg, policy) if sft.eval_worlds and not checkpoint else None
    if before:
        log(0, before[0])
    with progress(trainer.total, "SFT") as bar:
        trainer.on_step = lambda step, loss: bar.advance(1, loss=loss)
        if checkpoint:
            bar.advance(checkpoint[0])
        folder = trainer.train(resume=resume)
    if sft.eval_worlds:
        if sft.use == "best" and trainer.best_step != trainer.step:
            policy.close()
            policy = Policy.load(cfg, str(folder), engine=engine, trained=True)
        after = measure(cfg, policy)
        log(trainer.step, after[0])
        note(shown(before, after))
    policy.close()
    return folder


@measuring()
def measure(cfg: Config, policy: Policy) -> Measured:
    """World-model metrics on ``sft.eval_worlds`` validation worlds, in the format and with the history of the self-play data; the
    episodes."""
    from spa.evaluate.probe import probe_world_model

    cfg = replace(cfg, agent=replace(cfg.agent, window=history(cfg)))
    with policy.playing() as pushed:
        metrics, episodes = probe_world_model(
            cfg,
            policy,
            state_format=cfg.selfplay.state_format,
            worlds=cfg.sft.eval_worlds,
            seed=stream_seed(cfg.seeds.run, PROBE, 0),
        )
    return metrics | pushed, episodes
