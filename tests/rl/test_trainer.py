"""The loop: what it plays, when it validates and saves, how it ends."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from spa.agent.episode import Episode, TokenSequence, Turn, read_episodes
from spa.agent.policy import Policy, make_task
from spa.agent.task import Task
from spa.agent.worlds import WorldSource, split_of
from spa.common.checkpoints import list_checkpoints
from spa.config.schema import AgentConfig, Config, EnvConfig, PPOConfig, VariantConfig
from spa.config.training import WITH_GROUPS
from spa.models.load import load_state, save_model
from spa.rl.curriculum import training_tasks
from spa.rl.filters import nothing_to_learn
from spa.rl.health import TrainingFailed
from spa.rl.metrics import rollout_metrics
from spa.rl.trainer import PPOTrainer, train_ppo
from spa.rl.update import TrainingDiverged
from tests.scripted import Scripted, flat, tiny_config, tiny_policy


class Run:
    """A trainer and what it logged."""

    def __init__(self, out, config: Config, task: Task | None = None, start: str | None = None) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.policy = Policy.load(config, start)
        task = task or make_task(config)
        self.trainer = PPOTrainer(config, self.policy, task, out, lambda *row: self.logged.append(row), start=start)

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.policy.model.parameters()]).clone()


def test_training_worlds_are_taken_in_order_across_a_resume(tmp_path) -> None:
    config = tiny_config(steps=2, val_every=0)
    Run(tmp_path, config).trainer.train()
    config.ppo.steps = 4
    again = Run(tmp_path, config, start=str(tmp_path / "checkpoints" / "global_step_2"))
    again.trainer.train(resume=True)
    source = WorldSource(make_task(config), "train", config.seeds.train)
    expected = source.take(4 * config.ppo.groups)
    assert again.trainer.curriculum.sources[0].cursor == source.cursor
    assert again.trainer.played == {world.content: world.symmetry for world in expected}
    assert {split_of(key) for key in again.trainer.played} == {"train"}
    assert [step for step, _ in again.logged] == [3, 4]
    played = [e.seed for e in read_episodes(tmp_path / "episodes" / "step_000003.jsonl")]
    assert sorted(set(played)) == [world.seed for world in expected[4:6]]


def test_resuming_a_finished_run_changes_nothing(tmp_path) -> None:
    config = tiny_config(steps=1, val_every=0)
    last = Run(tmp_path, config).trainer.train()
    before = {path.name: path.read_bytes() for path in last.iterdir()}
    again = Run(tmp_path, config, start=str(last))
    assert again.trainer.train(resume=True) == last
    assert again.logged == []
    assert before == {path.name: path.read_bytes() for path in last.iterdir()}


def test_without_resume_old_checkpoints_are_not_taken_over(tmp_path) -> None:
    config = tiny_config(steps=1, val_every=0)
    Run(tmp_path, config).trainer.train()
    again = Run(tmp_path, config)
    again.trainer.train()
    assert [step for step, _ in again.logged] == [1]


@pytest.mark.parametrize(
    ("ppo", "validated", "saved"),
    [
        ({"val_every": 2, "save_every": 2, "keep_checkpoints": 0}, [0, 2, 3], [2, 3]),
        ({"val_every": 1, "val_before_train": False, "save_every": 0}, [1, 2, 3], [3]),
        ({"val_every": 0, "save_every": 1, "keep_checkpoints": 2}, [], [2, 3]),
    ],
)
def test_when_it_validates_and_saves(tmp_path, ppo, validated, saved) -> None:
    run = Run(tmp_path, tiny_config(steps=3, **ppo))
    run.trainer.train()
    assert [step for step, metrics in run.logged if "val/pass@1" in metrics] == validated
    assert [step for step, _ in list_checkpoints(tmp_path)] == saved
    assert not any(name.startswith("world_model/") for _, metrics in run.logged for name in metrics)  # no probe


def test_a_policy_that_does_not_move_validates_the_same_at_every_step(tmp_path) -> None:
    run = Run(tmp_path, tiny_config(steps=2, val_every=1, critic="model", actor_lr=0.0, val_worlds=4))
    before = run.weights()
    run.trainer.train()
    assert torch.equal(before, run.weights())
    rows = [{k: v for k, v in metrics.items() if k.startswith("val/")} for _, metrics in run.logged]
    assert rows[0] == rows[1] == rows[2]


def test_each_step_has_its_own_rollout_seed_and_its_own_worlds(tmp_path) -> None:
    run = Run(tmp_path, tiny_config(steps=2, val_every=0, actor_lr=0.0, critic="model", log_episodes=6))
    run.trainer.train()
    first, second = (list(read_episodes(tmp_path / "episodes" / f"step_00000{i}.jsonl")) for i in (1, 2))
    assert {e.seed for e in first}.isdisjoint(e.seed for e in second)
    assert len({e.noise_seed for e in first}) == len(first) == 6  # a group shares the world, not its luck
    assert [t.response for e in first for t in e.turns] != [t.response for e in second for t in e.turns]


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_episodes_that_were_trained_on_are_kept_with_their_advantages(tmp_path, estimator) -> None:
    config = tiny_config(steps=1, val_every=0, estimator=estimator, log_episodes=6)
    Run(tmp_path, config).trainer.train()
    episodes = list(read_episodes(tmp_path / "episodes" / "step_000001.jsonl"))
    assert len(episodes) == 6
    for episode in episodes:
        assert set(episode.estimates) == ({"advantages", "values"} if estimator == "gae" else {"advantages"})
        sampled = [
            sum(m for s in episode.sequences for m, t in zip(s.mask, s.turns, strict=True) if t == turn.index)
            for turn in episode.turns
        ]
        assert [len(each) for each in episode.estimates["advantages"]] == sampled
    assert any(number for episode in episodes for turn in episode.estimates["advantages"] for number in turn)


def test_validation_worlds_are_distinct_and_of_their_own_split(tmp_path) -> None:
    trainer = Run(tmp_path, tiny_config(val_worlds=20)).trainer
    keys = [world.content for world in trainer.val_worlds]
    assert len(set(keys)) == 20
    assert {split_of(key) for key in keys} == {"val"}


def test_each_world_of_a_mixture_is_validated_in_its_own_validation_worlds(tmp_path) -> None:
    cfg = tiny_config(val_worlds=12)
    cfg.curriculum.mixture = {"frozen_lake_slippery": 1.0, "sokoban_easy": 1.0}
    validations = Run(tmp_path, cfg).trainer.validations
    assert len(validations) == 3
    for _, task, worlds in validations:
        keys = [(world.symmetry if task.env.disjoint == "symmetry" else None) or world.content for world in worlds]
        assert {split_of(key) for key in keys} == {"val"} and len(set(keys)) == len(keys)


def test_in_critic_warm_up_only_the_critic_moves(tmp_path) -> None:
    run = Run(tmp_path, tiny_config(steps=3, groups=8, critic_warmup=2, val_every=0))
    history = [run.weights()]
    run.trainer.on_step = lambda step, metrics: history.append(run.weights())
    run.trainer.train()
    assert torch.equal(history[0], history[1])
    assert torch.equal(history[1], history[2])
    assert run.logged[2][1]["rollout/all_equal"] == 0
    assert not torch.equal(history[2], history[3])
    assert "losses/policy_loss" not in run.logged[0][1]
    kept = [next(read_episodes(tmp_path / "episodes" / f"step_00000{step}.jsonl")) for step in (2, 3)]
    assert [bool(episode.estimates) for episode in kept] == [False, True]  # no policy was trained with the first
    assert run.trainer.learner.critic.head.weight.any()


class Nothing:
    """Every episode is worth the same, whatever is done."""

    actions = ("Left", "Right")

    def reset(self, *, seed=None, options=None):
        return "state", {"content": str(seed)}

    def step(self, action):
        return "state", 0.0, False, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "learns"),
    [
        ({"critic": "model"}, False),
        ({"critic": "head"}, False),
        ({"critic": "none", "estimator": "reinforce_plus_plus"}, False),
        ({"critic": "model", "reward_placement": "turn"}, False),
        ({"critic": "model", "kl_reward_coef": 0.1}, True),  # tells tokens apart
        ({"critic": "model", "world_model_coef": 1.0, "world_model_fraction": 1.0}, True),  # has a loss of its own
    ],
)
def test_where_every_score_is_equal_the_policy_stays_as_it_is(tmp_path, capsys, changes, learns: bool) -> None:
    config = tiny_config(steps=1, val_every=0, filter="off", **changes)
    config.env = EnvConfig(id=f"{__name__}:Nothing", tag="Nothing", max_turns=2, disjoint="content")
    config.agent.format_penalty = 0.0
    run = Run(tmp_path, config)
    before = run.weights()
    run.trainer.train()
    metrics = run.logged[0][1]
    assert torch.equal(before, run.weights()) != learns
    told = capsys.readouterr().err
    assert ("the policy is not updated" in told) != learns
    assert ("the policy is updated by the world-model loss alone" in told) == bool(config.ppo.world_model_coef)
    assert metrics["rollout/all_equal"] == (not config.ppo.kl_reward_coef)
    assert "losses/policy_loss" not in metrics or config.ppo.kl_reward_coef
    assert metrics["charts/skipped_steps"] == (config.ppo.critic == "none")


def test_scores_that_differ_are_not_called_equal() -> None:
    one, two = [0.5, 0.5], [0.0, 1.0]
    assert nothing_to_learn([one, two], [0, 0], PPOConfig())
    assert not nothing_to_learn([one, two], [0, 0], PPOConfig(reward_placement="turn"))
    assert not nothing_to_learn([one, [1.1]], [0, 0], PPOConfig())
    # Worlds may be worth different scores; without a second episode of any world, all are compared.
    assert nothing_to_learn([one, one, two, [3.0], [3.0]], [0, 0, 0, 1, 1], PPOConfig())
    assert nothing_to_learn([one, one, [3.0]], [0, 0, 1], PPOConfig())
    assert not nothing_to_learn([one, [3.0]], [0, 1], PPOConfig())


TURN = {"reward_placement": "turn"}


def test_a_longer_episode_without_reward_is_not_another_one() -> None:
    assert nothing_to_learn([[0.0], [0.0, 0.0]], [0, 0], PPOConfig(**TURN))
    assert nothing_to_learn([[1.0, 0.0], [1.0], [1.0, 0.0, 0.0]], [0, 0, 0], PPOConfig(**TURN))
    assert not nothing_to_learn([[-0.1], [-0.1, -0.1]], [0, 0], PPOConfig(**TURN))


@pytest.mark.parametrize("estimator", WITH_GROUPS)
def test_a_group_baseline_reads_the_sum_of_turn_rewards_alone(estimator: str) -> None:
    at_once, later = [1.0], [0.0, 1.0]
    assert nothing_to_learn([at_once, later], [0, 0], PPOConfig(**TURN, estimator=estimator))
    assert not nothing_to_learn([at_once, later], [0, 0], PPOConfig(**TURN, estimator="reinforce_plus_plus"))


class ByWorld(Nothing):
    """What an episode is worth depends on the world alone, as where a model fails at every one."""

    def reset(self, *, seed=None, options=None):
        self.worth = -0.1 * (1 + seed % 7)
        return "state", {"content": str(seed)}

    def step(self, action):
        return "state", self.worth, False, False, {}


@pytest.mark.parametrize("critic", ["model", "head", "none"])
def test_constant_failure_gives_the_policy_no_gradient(tmp_path, capsys, critic: str) -> None:
    """Whitened, the differences between the worlds and the critic's error would be a gradient of usual size."""
    estimator = {"estimator": "reinforce_plus_plus"} if critic == "none" else {}
    config = tiny_config(steps=3, val_every=0, filter="off", critic=critic, reward_placement="end", **estimator)
    config.env = EnvConfig(id=f"{__name__}:ByWorld", tag="ByWorld", max_turns=1, max_actions_per_turn=1)
    config.agent.format_penalty = 0.0
    run = Run(tmp_path, config)
    run.policy.engine = Scripted(lambda i: "go</think><answer>Left</answer>")
    before = run.weights()
    run.trainer.train()
    assert torch.equal(before, run.weights())
    assert run.trainer.learner.updates == 0, "its learning-rate warm-up waits for its first step"
    for _, metrics in run.logged:
        assert metrics["rollout/all_equal"] == 1
        assert metrics.get("actor/grad_norm", 0.0) == 0
        assert ("losses/value_loss" in metrics) == (critic != "none")
    said = "not updated" if critic == "none" else "not updated, only the critic is"
    assert capsys.readouterr().err.count(f"all episodes score the same, so the policy is {said}\n") == 1


def test_the_reference_is_the_model_that_training_starts_from(tmp_path) -> None:
    start = tiny_policy()
    with torch.no_grad():
        for parameter in start.model.parameters():
            parameter.mul_(1.01)
    save_model(start.model, start.tokenizer, tmp_path / "sft")
    run = Run(tmp_path, tiny_config(kl_loss_coef=0.1), start=str(tmp_path / "sft"))
    assert torch.equal(flat(run.trainer.learner.reference.model.parameters()), flat(start.model.parameters()))


def test_dr_grpo_divides_by_the_most_tokens_of_a_row(tmp_path) -> None:
    config = tiny_config(estimator="grpo", loss_aggregation="seq-mean-token-sum-norm")
    config.sampling.max_tokens, config.sampling.max_tokens_base = 60, 12
    assert Run(tmp_path, config).trainer.learner.horizon == 12  # one turn a row
    config.agent.window, config.env.max_turns = 0, 3
    config.curriculum.mixture = {"frozen_lake": 1.0, "sudoku": 1.0}
    longest = max(task.env.max_turns for task in training_tasks(config))
    assert longest > config.env.max_turns
    assert Run(tmp_path, config).trainer.learner.horizon == 12 * longest


def test_the_filter_decides_what_is_learned_from(tmp_path) -> None:
    run = Run(tmp_path, tiny_config(steps=1, groups=4, filter_ratio=0.5, val_every=0))
    run.trainer.train()
    metrics = run.logged[0][1]
    assert metrics["rollout/kept"] == 0.5
    assert metrics["rollout/chosen_in_group_std"] >= metrics["rollout/in_group_std"]
    assert metrics["charts/episodes"] == 12
    assert metrics["train/updates"] == 2


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("top_k", 5), ("temperature", 0.0)])
def test_another_sampling_distribution_is_refused(tmp_path, name: str, value: float) -> None:
    config = tiny_config()
    setattr(config.sampling, name, value)
    with pytest.raises(ValueError, match="another distribution"):
        Run(tmp_path, config)


def test_a_checkpoint_is_a_plain_model_and_safe_state(tmp_path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = Run(tmp_path, tiny_config(steps=1, val_every=0, critic="model"))
    folder = run.trainer.train()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(torch.cat([p.flatten() for p in model.parameters()]), run.weights())
    ids = AutoTokenizer.from_pretrained(folder)("<think></think><answer>Up</answer>")["input_ids"]
    assert ids == run.policy.tokenizer("<think></think><answer>Up</answer>")["input_ids"]
    state = torch.load(folder / "trainer_state.pt", weights_only=True)
    assert state["step"] == 1
    assert state["learner"]["updates"] == 2
    assert load_state(folder)["played"] == sorted(run.trainer.played.items())


class Flaky:
    """A world that fails while ``broken`` is set."""

    broken = True

    def reset(self, *, seed=None, options=None):
        if Flaky.broken and options:  # only who plays gives options, not who looks for worlds
            raise RuntimeError("out of order")
        return f"world {seed}", {}

    def step(self, action):
        return "done", 1.0, True, False, {"success": True}

    def close(self):
        pass


FLAKY = Task(EnvConfig(id=f"{__name__}:Flaky", tag="F"), AgentConfig(style="terse", window=1))


def test_three_fruitless_steps_in_a_row_end_the_run_but_not_three_in_all(tmp_path, monkeypatch) -> None:
    run = Run(tmp_path, tiny_config(steps=9, val_every=0, groups=1, save_every=0), FLAKY)
    before = run.weights()
    after: list[torch.Tensor] = []

    def repair_for_one_step(step: int, metrics: dict[str, float]) -> None:
        after.append(run.weights())
        monkeypatch.setattr(Flaky, "broken", step != 2)

    run.trainer.on_step = repair_for_one_step
    with pytest.raises(ValueError, match=r"3 steps in a row.*RuntimeError: out of order"):
        run.trainer.train()
    assert [step for step, _ in run.logged] == [1, 2, 3, 4, 5]
    assert [metrics["train/errors"] for _, metrics in run.logged] == [3, 3, 0, 3, 3]
    assert torch.equal(before, after[1])  # nothing is learned from failures
    assert not torch.equal(before, after[2])


def test_a_world_of_a_mixture_that_always_fails_ends_the_run_however_small_its_share(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("spa.agent.failures._FEW", 8)
    config = tiny_config(steps=9, val_every=0, groups=4, save_every=1)
    config.curriculum.mixture = {"frozen_lake": 3.0, f"{__name__}:Flaky": 1.0}  # a quarter: less than env.max_failed
    run = Run(tmp_path, config)
    message = r"PPO in Flaky: 6 of 6 episodes failed.*env.max_failed=0.5"
    with pytest.raises(ValueError, match=message):
        run.trainer.train()
    assert [step for step, _ in run.logged] == [1]
    again = Run(tmp_path, config, start=str(tmp_path / "checkpoints" / "global_step_1"))
    with pytest.raises(ValueError, match=message):
        again.trainer.train(resume=True)


@pytest.mark.parametrize("mini_batches", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_learning_rate_that_is_far_too_large_ends_in_a_clear_error(tmp_path, mini_batches: int) -> None:
    run = Run(tmp_path, tiny_config(steps=9, actor_lr=1e30, val_every=0, save_every=1, mini_batches=mini_batches))
    # Numbers that are not finite, or a policy that writes nothing but junk, from which nothing more is learned.
    said = r"(diverged at step \d|policy has collapsed).*checkpoint.*Lower ppo\.actor_lr"
    with pytest.raises(TrainingFailed, match=said):
        run.trainer.train()


def test_weights_that_are_not_numbers_end_the_run_and_name_the_last_checkpoint(tmp_path) -> None:
    run = Run(tmp_path, tiny_config(val_every=0, save_every=1, critic="model"))

    def poison(step: int, metrics: dict[str, float]) -> None:
        with torch.no_grad():
            if step == 2:
                next(run.trainer.learner.critic.network.parameters()).fill_(float("nan"))

    run.trainer.on_step = poison
    with pytest.raises(TrainingDiverged, match=r"step 3.*last good checkpoint is .*global_step_2"):
        run.trainer.train()


def test_rollout_metrics_count_only_what_was_played() -> None:
    def turn(i: int, executed: int, **more) -> Turn:
        return Turn(i, "", "", "", executed=["Up"] * executed, **more)

    long = Episode("T", 0, 0, turns=[turn(0, 2, reward=1.0, format_ok=True), turn(1, 1, penalty=-0.5)], success=True)
    long.sequences = [TokenSequence([1] * 4, [0, 1, 1, 1], [-9.0, 0.0, -1.0, -0.5], [-1, 0, 0, 1])]
    short = Episode("T", 0, 0, turns=[turn(0, 0, finish_reason="length")])
    short.sequences = [TokenSequence([1] * 4, [0, 1, 1, 1], [0.0] * 4, [-1, 0, 0, 0])]
    failed = Episode("T", 0, 0, turns=[turn(0, 5, reward=99.0)], success=True, status="error")
    metrics = rollout_metrics([long, short, failed])
    assert metrics == {
        "train/errors": 1,
        "train/success": 0.5,
        "train/score": 0.25,
        "train/num_turns": 1.5,
        "train/num_actions": 1.5,
        "train/format_rate": pytest.approx(1 / 3),
        "train/cut_off": pytest.approx(1 / 3),
        "train/valid_rate": pytest.approx(2 / 3),
        "train/repetition": 0,
        "train/response_tokens": 2,
        "train/entropy": pytest.approx(1.5 / 6),
    }
    assert rollout_metrics([failed]) == {"train/errors": 1}
    refused = Episode("T", 0, 0, turns=[turn(0, 2, invalid=2), turn(1, 2, invalid=1), turn(2, 1), turn(3, 0)])
    assert rollout_metrics([refused])["train/valid_rate"] == 0.5, "what the world refused is not valid"


def test_what_the_stage_records(tmp_path) -> None:
    logged: list[int] = []
    config = tiny_config(steps=2, val_worlds=3)
    result = train_ppo(
        config,
        VariantConfig("vanilla"),
        "builtin:tiny",
        tmp_path,
        resume=False,
        log=lambda step, _: logged.append(step),
    )
    assert result["model"] == "checkpoints/global_step_2"
    assert len(result["worlds"]["val"]) == 3
    for split, keys in result["worlds"].items():
        assert {split_of(key) for key in keys} == {split}
        assert list(keys) == sorted(keys)
    assert json.loads(json.dumps(result)) == result
    assert logged == [0, 1, 2]
    assert np.isfinite(list(load_state(tmp_path / result["model"])["learner"]["critic"]["head.weight"].numpy())).all()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_sample_episode_is_shown_on_a_terminal(tmp_path, monkeypatch, capsys, terminal: bool) -> None:
    monkeypatch.setattr("spa.rl.trainer.on_terminal", lambda: terminal)
    cfg = tiny_config(steps=2, val_every=0)
    cfg.report.sample_every = 2
    train_ppo(cfg, VariantConfig("vanilla"), "builtin:tiny", tmp_path, resume=False, log=lambda step, row: None)
    shown = capsys.readouterr().err
    assert shown.count("; the last turn:") == int(terminal)
    assert "entropy" in shown and "kl" in shown and "format" in shown
