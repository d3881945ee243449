"""How stage 2 trains: packing, precision, adapters, early stopping, the best checkpoint, exact resume of all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spa.config.schema import ModelConfig, SFTConfig
from spa.data.encode import Example, encode_row, merge_turns
from spa.models.load import load_model, load_state
from spa.models.lora import add_lora
from spa.models.packing import enable_packing
from spa.sft.train import SFTTrainer, loss_sums, mean_loss
from tests.scripted import flat, same
from tests.sft.test_sft import CHAT, TOKENIZER, examples, row, tiny


def surprises(count: int = 3) -> list[Example]:
    """Validation rows that training on ``examples()`` soon makes worse."""
    return [encode_row(row(f"<think>{'Down ' * n}</think><answer>Right</answer>"), CHAT) for n in range(1, count + 1)]


class Stopped(Exception):
    """A run killed between two steps."""


def run(out: Path, *, resume=False, stop_at=None, lora=False, val=None, seed=0, **changes):
    """Trains the tiny model; returns (trainer, folder or None if stopped, logged metrics)."""
    settings = {"epochs": 3, "batch_size": 4, "lr": 1e-2, "keep_checkpoints": 0, "log_every": 1, **changes}
    logged: list[tuple[int, dict[str, float]]] = []
    checkpoints = sorted((out / "checkpoints").glob("global_step_*"), key=lambda p: int(p.name.split("_")[-1]))
    path = str(checkpoints[-1]) if resume and not lora else "builtin:tiny"
    model = load_model(ModelConfig(path=path, device="cpu"))
    if lora:
        add_lora(model, SFTConfig(lora_alpha=8, lora_dropout=0.1), 4)

    def log(step: int, metrics: dict[str, float]) -> None:
        logged.append((step, {name: value for name, value in metrics.items() if "second" not in name}))
        if step == stop_at:
            raise Stopped

    trainer = SFTTrainer(
        model,
        TOKENIZER,
        examples(),
        examples(3) if val is None else val,
        SFTConfig(**settings),
        out,
        seed=seed,
        log=log,
        measure=lambda step: {"world_model/stub": float(step)},
    )
    try:
        return trainer, trainer.train(resume=resume), logged
    except Stopped:
        return trainer, None, logged


def steps(out: Path) -> list[int]:
    return sorted(int(path.name.split("_")[-1]) for path in (out / "checkpoints").iterdir())


def weights(trainer) -> dict[str, torch.Tensor]:
    return trainer.model.state_dict()


def test_packed_rows_have_the_loss_and_gradients_of_padded_ones() -> None:
    model, rows = tiny(), examples()
    padded = mean_loss(model, rows, 300)
    for part in loss_sums(model, rows, 300):
        part.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    enable_packing(model)
    assert mean_loss(model, rows, 300, packing=True) == pytest.approx(padded, abs=1e-6)
    for part in loss_sums(model, rows, 300, packing=True):
        part.backward()
    for p, expected in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-4, atol=1e-4)


def conversation(turns: int, seed: int) -> list:
    """The rows of an episode with the whole history in their prompts."""
    rng = np.random.default_rng(seed)
    texts = [f"<think>{'Up ' * int(rng.integers(1, 6))}{seed}</think><answer>Left</answer>" for _ in range(turns)]
    return [row(texts[i], *texts[:i]) for i in range(turns)]


def test_merged_turns_have_the_loss_and_gradients_of_their_rows() -> None:
    rows = [one for episode, turns in enumerate((3, 1, 4)) for one in conversation(turns, episode)]
    each = [encode_row(one, CHAT) for one in rows]
    merged = merge_turns(each)
    assert [example.rows for example in merged] == [3, 1, 4]
    assert sum(len(e.positions) for e in merged) == sum(len(e.positions) for e in each)
    assert [len(e.ids) for e in merged] == [len(each[i].ids) for i in (2, 3, 7)]
    model = tiny()
    grads = []
    for examples_ in (each, merged):
        model.zero_grad()
        total = sum(loss_sums(model, examples_, 500), start=torch.zeros(()))
        total.backward()
        grads.append((float(total.detach()), [p.grad.clone() for p in model.parameters()]))
    assert grads[0][0] == pytest.approx(grads[1][0], rel=1e-5)
    for a, b in zip(grads[0][1], grads[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_what_is_no_beginning_or_already_trained_stays_a_row() -> None:
    once = [encode_row(one, CHAT) for one in conversation(2, 0)]
    both = Example(once[1].ids, sorted(once[0].positions + once[1].positions), 2)
    assert merge_turns([*once, once[0]]) == [once[0], both]
    alone = examples(5)
    assert merge_turns(alone) == alone
    assert merge_turns([]) == []


def test_a_step_holds_about_as_many_rows_as_asked_for(tmp_path) -> None:
    merged = merge_turns([encode_row(one, CHAT) for i in range(6) for one in conversation(4, i)])
    config = SFTConfig(epochs=1, batch_size=8)
    trainer = SFTTrainer(tiny(), TOKENIZER, merged, [], config, tmp_path, seed=0, log=lambda *_: None)
    assert (len(merged), trainer.step_size, trainer.total) == (6, 2, 3)


def test_bfloat16_is_near_float32_and_is_really_used() -> None:
    model, rows = tiny(), examples()
    exact = mean_loss(model, rows, 300)
    rough = mean_loss(model, rows, 300, precision="bfloat16")
    assert rough != exact
    assert rough == pytest.approx(exact, rel=0.02)
    for part in loss_sums(model, rows, 300, precision="bfloat16"):
        part.backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


def dropping():
    """A model whose adapters drop half of what they read; they start at 0, where that would change nothing."""
    model = load_model(ModelConfig(device="cpu"))
    add_lora(model, SFTConfig(lora_alpha=8, lora_dropout=0.5), 4)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=generator)
    return model.train()


def test_dropout_is_off_in_validation() -> None:
    model = dropping()
    assert mean_loss(model, examples(), 300) == mean_loss(model, examples(), 300)
    assert model.training


@pytest.mark.parametrize("packing", [True, False])
def test_resume_is_exact_with_and_without_packing(tmp_path, packing: bool) -> None:
    settings = {"packing": packing, "save_every": 3, "schedule": "wsd", "decay_fraction": 0.5}
    whole, _, log = run(tmp_path / "whole", **settings)
    run(tmp_path / "cut", stop_at=8, **settings)
    resumed, _, rest = run(tmp_path / "cut", resume=True, **settings)
    assert same(weights(whole), weights(resumed))
    assert rest == log[6:]


def test_resume_with_adapters_and_dropout_is_exact(tmp_path) -> None:
    whole, folder, log = run(tmp_path / "whole", lora=True, save_every=3)
    torch.manual_seed(99)  # the global random state has no say in it
    run(tmp_path / "cut", lora=True, stop_at=8, save_every=3)
    resumed, _, rest = run(tmp_path / "cut", lora=True, resume=True, save_every=3)
    assert same(weights(whole), weights(resumed))
    assert rest == log[6:]
    assert "lora" in load_state(folder)


def trainer_of(model, out: Path, *, seed: int = 0, **settings) -> SFTTrainer:
    return SFTTrainer(model, TOKENIZER, examples(), [], SFTConfig(**settings), out, seed=seed, log=lambda *_: None)


def test_dropout_depends_on_the_seed_and_the_step_alone(tmp_path) -> None:
    def loss(seed: int, step: int) -> float:
        trainer = trainer_of(dropping(), tmp_path, seed=seed)
        trainer.step = step
        return trainer._one_step(trainer.train_set)["train/loss"]

    assert loss(0, 1) == loss(0, 1)
    assert len({loss(0, 0), loss(0, 1), loss(1, 1)}) == 3


@pytest.mark.parametrize("limit", [1e9, 0.1])
def test_a_step_follows_the_mean_over_its_tokens_clipped_as_a_whole(tmp_path, limit: float) -> None:
    """Whatever the micro-batches."""
    trainer = trainer_of(tiny(), tmp_path, micro_batch_tokens=300, max_grad_norm=limit, warmup_fraction=0.0)
    parameters, rows = list(trainer.model.parameters()), trainer.train_set[:6]
    sum(loss_sums(trainer.model, rows, 10**6), start=torch.zeros(())).backward()
    wanted = torch.cat([p.grad.flatten() for p in parameters]) / sum(len(row.positions) for row in rows)
    assert float(wanted.norm()) > 0.1
    trainer.optimizer = torch.optim.SGD([{"params": parameters, "lr": 1.0, "peak_lr": 1.0}])
    before = flat(parameters)
    trainer._one_step(rows)
    got = before - flat(parameters)
    torch.testing.assert_close(got, wanted * min(1.0, limit / float(wanted.norm())), rtol=1e-3, atol=1e-6)


def test_matrices_decay_as_the_settings_say(tmp_path) -> None:
    groups = trainer_of(tiny(), tmp_path, weight_decay=0.3).optimizer.param_groups
    assert {group["weight_decay"] for group in groups if group["params"][0].ndim == 2} == {0.3}


def test_every_epoch_has_all_rows_in_an_order_of_its_own(tmp_path, monkeypatch) -> None:
    trainer = trainer_of(tiny(), tmp_path, epochs=2, batch_size=4)
    places = {id(example): place for place, example in enumerate(trainer.train_set)}
    seen: list[int] = []

    def noted(batch: list[Example]) -> dict[str, float]:
        seen.extend(places[id(example)] for example in batch)
        return {"train/loss": 0.0}

    monkeypatch.setattr(trainer, "_one_step", noted)
    trainer.train()
    first, second = seen[: len(places)], seen[len(places) :]
    assert sorted(first) == sorted(second) == list(range(len(places)))
    assert first != second


def test_training_stops_when_validation_gets_worse_and_the_best_is_used(tmp_path) -> None:
    trainer, folder, log = run(
        tmp_path, val=surprises(), epochs=20, val_every=1, patience=3, use="best", keep_checkpoints=1
    )
    losses = {step: metrics["val/loss"] for step, metrics in log}
    best = min(losses, key=losses.__getitem__)
    assert trainer.step == best + 3 < trainer.total
    assert folder.name == f"global_step_{best}"
    assert steps(tmp_path) == [best, trainer.step]
    model = load_model(ModelConfig(device="cpu"), str(folder))
    assert mean_loss(model, surprises(), 1000) == pytest.approx(losses[best], abs=1e-5)


def test_without_patience_the_last_is_used_however_bad(tmp_path) -> None:
    trainer, folder, _ = run(tmp_path, val=surprises(), val_every=1, keep_checkpoints=1)
    assert folder.name == f"global_step_{trainer.total}"
    assert steps(tmp_path) == [trainer.total]


def test_early_stopping_resumes_where_it_was(tmp_path) -> None:
    settings = {"val": surprises(), "epochs": 20, "val_every": 1, "patience": 3, "use": "best", "save_every": 1}
    whole, folder, log = run(tmp_path / "whole", **settings)
    run(tmp_path / "cut", stop_at=whole.step - 1, **settings)
    resumed, again, rest = run(tmp_path / "cut", resume=True, **settings)
    assert (resumed.step, again.name) == (whole.step, folder.name)
    assert rest == log[whole.step - 2 :]
    # Killed after the end: nothing is trained again.
    over, last, nothing = run(tmp_path / "cut", resume=True, **settings)
    assert (over.step, last.name, nothing) == (whole.step, folder.name, [])


def test_validation_is_needed_where_it_decides() -> None:
    for changes in ({"use": "best"}, {"patience": 2}):
        with pytest.raises(ValueError, match=r"needs validation rows.*selfplay\.val_fraction"):
            run(Path("unused"), val=[], **changes)


def test_validation_and_measurements_come_when_they_are_due(tmp_path) -> None:
    _, _, log = run(tmp_path, epochs=2, val_every=3, eval_every=2, log_every=100)
    assert [step for step, metrics in log if "val/loss" in metrics] == [3, 6, 8]
    measured = {step: metrics["world_model/stub"] for step, metrics in log if "world_model/stub" in metrics}
    assert measured == {2: 2.0, 4: 4.0, 6: 6.0}  # the one after the end is the stage's
    assert [step for step, _ in log] == [1, 2, 3, 4, 6, 8]


def test_learning_rates_follow_the_schedule(tmp_path) -> None:
    _, _, log = run(tmp_path, schedule="wsd", warmup_fraction=0.25, decay_fraction=0.25)
    rates = [metrics["train/lr"] for _, metrics in log]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3:10] == [1e-2] * 7
    assert rates[10] < 1e-2
    assert rates[11] < rates[10]
