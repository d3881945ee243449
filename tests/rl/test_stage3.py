"""Stage 3 as a whole with what is optional in it: exact resume, the best checkpoint, collapse, dynamic sampling, mixtures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from spa.agent.episode import Episode, read_episodes
from spa.agent.policy import Policy, make_task
from spa.common.checkpoints import checkpoint_folder, list_checkpoints
from spa.config.schema import Config, CurriculumConfig, VariantConfig
from spa.models.load import load_state
from spa.rl.health import TrainingCollapsed
from spa.rl.trainer import PPOTrainer, train_ppo
from spa.rl.update import TrainingDiverged
from tests.scripted import Scripted, lake_task, same, tiny_config, tiny_policy

Rows = list[tuple[int, dict[str, float]]]


def train(out: Path, cfg: Config, *, resume: bool = False, variant: VariantConfig | None = None) -> tuple[dict, Rows]:
    rows: Rows = []

    def log(step: int, metrics: dict[str, float]) -> None:
        rows.append((step, {k: v for k, v in metrics.items() if "time" not in k and "per_second" not in k}))

    result = train_ppo(cfg, variant or VariantConfig("vanilla"), "builtin:tiny", out, resume=resume, log=log)
    return result, rows


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Policy.load(tiny_config(), str(folder)).model.state_dict()


def with_curriculum(**curriculum: object) -> Config:
    cfg = tiny_config()
    cfg.curriculum = CurriculumConfig(**curriculum)
    return cfg


VARIANTS = {
    "auxiliary loss": lambda: tiny_config(world_model_coef=0.5, target_kl=0.5, filter="std", filter_ratio=0.5),
    "adapters": lambda: tiny_config(
        critic="model", lora_rank=4, critic_lora_rank=2, lora_dropout=0.1, kl_loss_coef=0.1
    ),
    "the critic's adapters alone": lambda: tiny_config(critic="model", critic_lora_rank=2),
    "reference": lambda: tiny_config(
        estimator="grpo", kl_reward_coef=0.1, reward_placement="end", reward_norm="mean_std"
    ),
    "dynamic sampling": lambda: tiny_config(dynamic_groups=2, dynamic_rounds=3, use="best", val_every=1),
    "levels": lambda: with_curriculum(levels=[{"size": 2}], threshold=0.01, window=1, rehearsal=0.5),
    "mixture": lambda: with_curriculum(mixture={"frozen_lake": 1.0, "frozen_lake_6x6": 2.0}),
}


FAST = ("reference",)


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in VARIANTS]
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, variant: str) -> None:
    cfg = VARIANTS[variant]()
    whole, rows = train(tmp_path / "whole", cfg)
    cut = VARIANTS[variant]()
    cut.ppo.steps = 2
    train(tmp_path / "cut", cut)
    resumed, rest = train(tmp_path / "cut", cfg, resume=True)
    assert rest == [row for row in rows if row[0] > 2]
    assert {k: v for k, v in whole.items() if k != "best_score"} == {
        k: v for k, v in resumed.items() if k != "best_score"
    }
    assert same(weights(tmp_path / "whole" / whole["last"]), weights(tmp_path / "cut" / resumed["last"]))
    first, second = (load_state(tmp_path / name / whole["last"]) for name in ("whole", "cut"))
    assert set(first) == set(second)
    for name in set(first) - {"learner"}:
        assert first[name] == second[name], name


@pytest.mark.slow
def test_adapters_are_saved_merged_and_on_their_own(tmp_path) -> None:
    result, _ = train(tmp_path, VARIANTS["adapters"]())
    folder = tmp_path / result["model"]
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    assert not same(weights(folder), weights(Path(__file__).parents[2] / "src/spa/models/builtin/tiny"))
    assert not any("lora" in name for name in weights(folder))


# The best checkpoint


def test_of_equal_scores_the_higher_reward_is_better(tmp_path) -> None:
    """In a world that nobody wins yet, or that only keeps a score, the first checkpoint was the best."""
    policy = tiny_policy()
    trainer = PPOTrainer(tiny_config(use="best"), policy, lake_task(1), tmp_path, lambda *_: None)
    rewards = {3: 0.17, 6: -0.02, 9: 0.27, 12: 0.27}
    better = []
    for trainer.step, reward in rewards.items():
        better.append(trainer._improved({"val/pass@1": 0.0, "val/reward": reward}))
    assert better == [True, False, True, False] and trainer.best_step == 9
    assert trainer._improved({"val/pass@1": 0.1, "val/reward": -1.0})


def scripted_scores(monkeypatch, scores: dict[int, float]) -> None:
    """Validation that says what a test wants."""
    real = PPOTrainer.validate

    def validate(self: PPOTrainer) -> dict[str, float]:
        return {**real(self), "val/pass@1": scores[self.step]}

    monkeypatch.setattr(PPOTrainer, "validate", validate)


SCORES = {0: 0.9, 1: 0.2, 2: 0.5, 3: 0.5, 4: 0.1}


def test_the_best_checkpoint_is_kept_and_used(tmp_path, monkeypatch) -> None:
    scripted_scores(monkeypatch, SCORES)
    result, _ = train(tmp_path, tiny_config(val_every=1, save_every=0, keep_checkpoints=1, use="best"))
    assert (
        result["model"] == result["best"] == "checkpoints/global_step_2"
    )  # step 0 is no checkpoint; of equals the first
    assert result["last"] == "checkpoints/global_step_4"
    assert result["best_score"] == 0.5
    assert [step for step, _ in list_checkpoints(tmp_path)] == [2, 4]
    state = load_state(tmp_path / result["last"])
    assert (state["best_step"], state["best_score"]) == (2, 0.5)


def test_a_resumed_run_knows_what_was_best(tmp_path, monkeypatch) -> None:
    scripted_scores(monkeypatch, SCORES)
    settings = {"val_every": 1, "save_every": 1, "keep_checkpoints": 1, "use": "best"}
    train(tmp_path, tiny_config(steps=3, **settings))
    result, _ = train(tmp_path, tiny_config(**settings), resume=True)
    assert result["model"] == "checkpoints/global_step_2"


def test_without_it_the_last_one_counts(tmp_path, monkeypatch) -> None:
    scripted_scores(monkeypatch, SCORES)
    result, _ = train(tmp_path, tiny_config(val_every=1, save_every=0, keep_checkpoints=1))
    assert result["model"] == result["last"] == "checkpoints/global_step_4"
    assert "best" not in result


# Collapse


def collapsing(out: Path, **ppo: object) -> tuple[PPOTrainer, Rows]:
    """A trainer whose model plays well for two steps and then writes one token over and over."""
    cfg = tiny_config(
        val_every=0, steps=8, save_every=1, keep_checkpoints=0, collapse_patience=2, critic="model", **ppo
    )
    rows: Rows = []
    policy = Policy.load(cfg)
    trainer = PPOTrainer(cfg, policy, make_task(cfg), out, lambda step, metrics: rows.append((step, metrics)))

    def watch(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            policy.engine = Scripted(lambda i: "UpUp" * 10, end=False)

    trainer.on_step = watch
    policy.engine = Scripted(lambda i: "go</think><answer>Up</answer>")
    return trainer, rows


def test_a_collapsed_policy_ends_the_run_and_the_last_good_checkpoint_is_named(tmp_path) -> None:
    trainer, rows = collapsing(tmp_path)
    with pytest.raises(TrainingCollapsed, match=r"for 2 steps.*valid action.*loop.*global_step_2\. Lower") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    assert [step for step, _ in rows] == [1, 2, 3, 4]
    assert rows[-1][1]["train/repetition"] == 1.0
    assert rows[-1][1]["train/valid_rate"] == 0.0


def test_it_goes_on_when_asked_to(tmp_path, capsys) -> None:
    trainer, rows = collapsing(tmp_path, on_collapse="continue")
    trainer.train()
    assert len(rows) == 8
    assert capsys.readouterr().err.count("the policy has collapsed") == 1


def never_playing(out: Path, text: str, **ppo: object) -> PPOTrainer:
    cfg = tiny_config(val_every=0, steps=3, collapse_patience=2, critic="model", **ppo)
    policy = Policy.load(cfg)
    trainer = PPOTrainer(cfg, policy, make_task(cfg), out, lambda step, metrics: None)
    policy.engine = Scripted(lambda i: text)
    return trainer


@pytest.mark.parametrize(("text", "times"), [("nothing", 1), ("go</think><answer>Up</answer>", 0)])
def test_a_model_that_never_plays_is_reported(tmp_path, capsys, text: str, times: int) -> None:
    never_playing(tmp_path, text, on_collapse="continue").train()
    assert capsys.readouterr().err.count("no turn of the first 2 steps had a valid action") == times


def test_a_model_that_never_plays_stops_the_run(tmp_path) -> None:
    trainer = never_playing(tmp_path, "nothing")
    with pytest.raises(
        TrainingCollapsed, match=r"no turn of the first 2 steps had a valid action.*on_collapse=continue"
    ):
        trainer.train()
    assert trainer.step == 2


def test_a_loss_that_is_not_finite_is_left_out_when_asked_to(tmp_path, monkeypatch, capsys) -> None:
    import spa.rl.update as ppo

    real, calls = ppo._step, []

    def sometimes(learner, *rest):
        calls.append(0)
        if len(calls) == 3:
            raise TrainingDiverged("the PPO loss is nan")
        real(learner, *rest)

    monkeypatch.setattr(ppo, "_step", sometimes)
    with pytest.raises(TrainingDiverged, match=r"step 2.*global_step_1.*on_collapse=continue"):
        train(tmp_path / "stop", tiny_config(save_every=1, val_every=0))
    calls.clear()
    _, rows = train(tmp_path / "on", tiny_config(save_every=1, val_every=0, on_collapse="continue"))
    assert [step for step, _ in rows] == [1, 2, 3, 4]
    assert [metrics["charts/skipped_steps"] for _, metrics in rows] == [0, 1, 1, 1]
    assert "step 2 was left out: the PPO loss is nan" in capsys.readouterr().err


def test_weights_that_no_longer_give_a_distribution_end_the_run(tmp_path) -> None:
    """That is seen in the next rollout, and the checkpoint of that step is not called good."""
    cfg = tiny_config(val_every=0, save_every=1, keep_checkpoints=0)
    policy = Policy.load(cfg)
    trainer = PPOTrainer(cfg, policy, make_task(cfg), tmp_path, lambda step, metrics: None)

    def inflate(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            with torch.no_grad():
                policy.model.base_model.norm.weight.fill_(float("inf"))

    trainer.on_step = inflate
    with pytest.raises(TrainingDiverged, match=r"logits are not finite.*last good checkpoint is .*global_step_1\."):
        trainer.train()
    assert checkpoint_folder(tmp_path, 2).is_dir()


# Dynamic sampling and empty batches


class Chance(Scripted):
    """Wins or loses by the world's luck alone: scores are written into the episodes by ``play``."""


def scored(monkeypatch, scores: list[list[list[float]]]) -> list[int]:
    """Each call of ``play`` gives groups with these scores; returns the list that counts its calls."""
    calls: list[int] = []

    def play(self, task, worlds, *, samples, seed, **more) -> list[Episode]:
        real = original(self, task, worlds, samples=samples, seed=seed, **more)
        wanted = scores[len(calls)]
        calls.append(seed)
        for episode in real:
            value = wanted[episode.group][episode.member]
            for turn in episode.turns:
                turn.reward = turn.penalty = 0.0
            episode.turns[-1].reward = value
        return real

    original = Policy.play
    monkeypatch.setattr(Policy, "play", play)
    return calls


SAME, DIFFERENT = [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]


def test_worlds_are_drawn_until_enough_groups_tell_good_from_bad(tmp_path, monkeypatch) -> None:
    calls = scored(monkeypatch, [[SAME, SAME], [DIFFERENT, SAME], [DIFFERENT, DIFFERENT]])
    cfg = tiny_config(steps=1, val_every=0, dynamic_groups=2, dynamic_rounds=9, filter="off")
    _, rows = train(tmp_path, cfg)
    metrics = rows[0][1]
    assert len(calls) == len(set(calls)) == 3
    assert metrics["rollout/rounds"] == 3
    assert metrics["rollout/informative"] == 3  # one more than asked for: it is not trained on
    assert metrics["rollout/kept"] == pytest.approx(2 / 6)
    assert metrics["charts/episodes"] == 18
    assert metrics["rollout/zero_std"] == 0.5


def test_no_filter_follows_dynamic_sampling(tmp_path, monkeypatch) -> None:
    scored(monkeypatch, [[DIFFERENT, DIFFERENT], [DIFFERENT, DIFFERENT]])
    cfg = tiny_config(steps=1, val_every=0, dynamic_groups=4, dynamic_rounds=9, filter="std", filter_ratio=0.25)
    assert train(tmp_path, cfg)[1][0][1]["rollout/kept"] == 1


def test_it_gives_up_after_some_rounds_and_skips_a_step_without_any(tmp_path, monkeypatch, capsys) -> None:
    calls = scored(monkeypatch, [[SAME, SAME]] * 4 + [[DIFFERENT, SAME]] * 2)
    cfg = tiny_config(steps=3, val_every=0, dynamic_groups=1, dynamic_rounds=2, estimator="grpo", filter="off")
    _, rows = train(tmp_path, cfg)
    assert len(calls) == 5
    assert [metrics["charts/skipped_steps"] for _, metrics in rows] == [1, 2, 2]
    assert [metrics["rollout/kept"] for _, metrics in rows] == [0, 0, 0.5]
    assert [metrics["rollout/all_equal"] for _, metrics in rows] == [1, 1, 0]
    assert ["losses/policy_loss" in metrics for _, metrics in rows] == [False, False, True]
    assert capsys.readouterr().err.count("all episodes score the same, so the policy is not updated\n") == 1


def test_a_filter_that_keeps_nothing_skips_the_step(tmp_path, monkeypatch) -> None:
    scored(monkeypatch, [[SAME, SAME]] * 4)
    _, rows = train(tmp_path, tiny_config(val_every=0, filter="top_p", filter_ratio=0.9))
    assert [metrics["charts/skipped_steps"] for _, metrics in rows] == [1, 2, 3, 4]  # and is no failure, however often
    assert all(metrics["rollout/all_equal"] == 1 for _, metrics in rows)


# Mixtures and levels


def test_each_task_of_a_mixture_is_logged_and_validated(tmp_path) -> None:
    cfg = VARIANTS["mixture"]()
    cfg.ppo.groups, cfg.ppo.val_worlds = 3, 4
    result, rows = train(tmp_path, cfg)
    metrics = rows[-1][1]
    assert {"val/pass@1", "val/FrozenLake6x6/pass@1", "train/FrozenLake/success", "train/FrozenLake6x6/success"} <= set(
        metrics
    )
    assert len(result["worlds"]["val"]) == 4 + 2
    groups = [
        json.loads(line)["group"] for line in (tmp_path / "episodes" / "step_000001.jsonl").read_text().splitlines()
    ]
    assert sorted(set(groups)) == [0, 1, 2]


@pytest.mark.parametrize("selection", [{"filter": "std", "filter_ratio": 0.5}, {"dynamic_groups": 2}])
def test_a_task_with_small_rewards_is_trained_on_too(tmp_path, monkeypatch, selection) -> None:
    large = [0.0, 10.0, 10.0]
    scored(monkeypatch, [[large, large], [DIFFERENT, DIFFERENT]])
    cfg = tiny_config(steps=1, val_every=0, groups=4, log_episodes=12, **selection)
    cfg.curriculum = CurriculumConfig(mixture={"frozen_lake": 1, "frozen_lake_6x6": 1})
    train(tmp_path, cfg)
    episodes = read_episodes(tmp_path / "episodes" / "step_000001.jsonl")
    assert {episode.group for episode in episodes if episode.estimates} == {0, 2}


def test_tasks_of_a_mixture_that_share_a_tag_are_named_by_their_configs(tmp_path) -> None:
    cfg = tiny_config(steps=1, val_every=1, val_worlds=4, groups=4)
    cfg.curriculum = CurriculumConfig(mixture={"frozen_lake": 1, "frozen_lake_slippery": 1})
    _, rows = train(tmp_path, cfg)
    tasks = {name.split("/")[1] for name in rows[-1][1] if name.startswith("train/") and name.count("/") == 2}
    assert tasks == {"frozen_lake", "frozen_lake_slippery"}
    assert {"val/pass@1", "val/frozen_lake_slippery/pass@1"} <= set(rows[-1][1])
    assert "val/frozen_lake/pass@1" not in rows[-1][1]  # the run's own


def test_a_world_with_the_tag_of_the_runs_own_is_validated_where_that_is_not_trained_on(tmp_path) -> None:
    cfg = tiny_config(steps=1, val_every=1, val_worlds=4, groups=4)
    cfg.curriculum = CurriculumConfig(mixture={"frozen_lake_slippery": 1, "frozen_lake_6x6": 1})
    _, rows = train(tmp_path, cfg)
    assert {"val/pass@1", "val/frozen_lake_slippery/pass@1", "val/FrozenLake6x6/pass@1"} <= set(rows[-1][1])


def test_levels_rise_with_success(tmp_path, monkeypatch) -> None:
    win = [[1.0] * 3, [1.0] * 3]
    calls = scored(monkeypatch, [win] * 9)
    original = Policy.play

    def play(self, task, worlds, **more):
        played = original(self, task, worlds, **more)
        for episode in played:
            episode.success = True
        sizes.append(task.env.settings["size"])
        return played

    sizes: list[int] = []
    monkeypatch.setattr(Policy, "play", play)
    cfg = with_curriculum(levels=[{"size": 2}, {"size": 3}], threshold=0.5, window=1)
    cfg.ppo.val_every = 0
    _, rows = train(tmp_path, cfg)
    assert len(calls) == 4
    assert sizes == [2, 3, 4, 4]
    assert [metrics["curriculum/level"] for _, metrics in rows] == [0, 1, 2, 2]


# World model along the curve


@pytest.mark.slow
def test_the_world_model_is_measured_along_the_curve_on_turns_that_stay_the_same(tmp_path) -> None:
    cfg = tiny_config(steps=2, val_every=1, val_worlds=6, world_model_coef=0.1)
    cfg.sampling.max_tokens = 200
    _, rows = train(tmp_path, cfg, variant=VariantConfig("spa", "coordinates", True))
    cases = [metrics["calibration/cases"] for _, metrics in rows]
    assert len(set(cases)) == 1
    assert cases[0] > 0
    assert all(metrics["losses/world_model"] > 0 for _, metrics in rows[1:])
    assert len({metrics["calibration/nll_per_token"] for _, metrics in rows}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coefficient", "prompt", "sft", "measured"),
    [
        (0.0, "base", False, False),
        (0.0, "base", True, True),
        (0.1, "base", False, True),
        (0.0, "world_model", False, True),
    ],
)
def test_who_is_measured(tmp_path, coefficient: float, prompt: str, sft: bool, measured: bool) -> None:
    cfg = tiny_config(steps=1, world_model_coef=coefficient)
    cfg.agent.prompt = prompt
    _, rows = train(tmp_path, cfg, variant=VariantConfig("one", "grid", sft))
    assert ("world_model/coverage" in rows[0][1]) is measured


def test_an_accurate_world_model_is_rewarded(tmp_path) -> None:
    """The vagen variant's reward reaches the score, and not what is shown as the world's."""
    cfg = tiny_config(
        steps=1, val_every=0, observation_reward=0.5, prediction_reward=0.5, state_match="cells", log_episodes=6
    )
    cfg.agent.prompt, cfg.sampling.max_tokens = "world_model", 100
    _, rows = train(tmp_path, cfg)
    metrics = rows[0][1]
    assert metrics["critic/score/mean"] > metrics["train/score"] + 0.1
    assert np.isfinite(metrics["losses/policy_loss"])
