"""``spa diagnose``: its numbers, its rules, what it writes and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spa.agent.episode import Episode, Turn
from spa.agent.policy import make_task
from spa.agent.worlds import WorldSource, split_of
from spa.cli import main
from spa.config.load import load_config, load_variant
from spa.diagnose import advice, measure
from spa.diagnose.advice import Base, Diagnosis, Learned, Planned, States, VariantTime, base_part, verdict
from spa.envs.check_markov import Outcomes
from spa.envs.frozen_lake.world import FrozenLake
from spa.evaluate.bootstrap import Interval
from tests.scripted import tiny_config, tiny_policy

SMALL = [
    "--worlds",
    "4",
    "--groups",
    "6",
    "--steps",
    "3",
    "--quiet",
    "model.threads=1",
    "sampling.max_tokens=64",
    "selfplay.state_format=grid",
]
SMALL += [
    "ppo.groups=2",
    "ppo.group_size=2",
    "planner.depth=2",
    "variants=[vanilla,spa,search]",
    "selfplay.group_size=2",
]
LAKE = ["frozen_lake", "env.max_actions_per_turn=1", "env.max_turns=3", "env.max_actions=3"]


class Ran(NamedTuple):
    numbers: dict[str, Any]
    printed: str
    splits: set[str]
    left: list[str]  # in the working directory and that of temporary files


def smaller(patch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANDOM_EPISODES": 40, "IMAGINED_WORLDS": 2, "PROBED": 4}.items():
        patch.setattr(measure, name, value)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder, scratch = tmp_path_factory.mktemp("lake"), tmp_path_factory.mktemp("scratch")
    splits: set[str] = set()
    start = WorldSource.__init__

    def recorded(self: WorldSource, task: Any, split: str, *args: Any, **more: Any) -> None:
        splits.add(split)
        start(self, task, split, *args, **more)

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        smaller(patch)
        patch.chdir(folder)
        patch.setattr(tempfile, "tempdir", str(scratch))
        patch.setattr(WorldSource, "__init__", recorded)
        code = main(["diagnose", *LAKE, *SMALL, "--json", "found.json"])
    assert code == 0
    numbers = json.loads((folder / "found.json").read_text())
    left = [path.name for path in [*folder.iterdir(), *scratch.glob("spa*")]]
    return Ran(numbers, printed.getvalue(), splits, left)


@pytest.mark.slow
def test_every_part_is_measured(lake: Ran) -> None:
    found = lake.numbers
    assert found["name"] == "frozen_lake" and found["worlds"] == 4
    assert found["base"]["format_rate"] > 0.9 and found["base"]["valid_turns"] > 0.9  # the tiny model knows the format
    assert 0 <= found["base"]["pass_1"]["low"] <= found["base"]["pass_1"]["mean"] <= found["base"]["pass_1"]["high"]
    assert found["states"]["raw"] > 1 and found["states"]["coordinates"] > 1 and found["states"]["guess"] == 6
    assert found["hidden"]["kind"] == "certain"
    assert found["learned"]["steps"] >= 3 and found["learned"]["rows"] > 0
    assert set(found["learned"]["imagined"]) in ({"1"}, {"1", "2"})  # to the depth to which it wrote states at all
    assert found["planned"]["kind"] == "lookahead" and found["planned"]["questions"] > 0
    over = found["planned"]["over_random"]
    assert over["mean"] == pytest.approx(found["planned"]["pass_1"]["mean"] - found["base"]["random"])
    expected, true = found["planned"]["wins_expected"], found["planned"]["wins_true"]
    assert true is None if not expected else 0 <= true <= 1


@pytest.mark.slow
def test_the_times_are_those_of_the_config(lake: Ran) -> None:
    times = {time["variant"]: time for time in lake.numbers["times"]}
    assert list(times) == ["vanilla", "spa", "search"]
    assert (times["vanilla"]["stage_1"], times["vanilla"]["stage_2"], times["search"]["stage_3"]) == (0, 0, 0)
    cfg = load_config("frozen_lake")
    for variant in ("vanilla", "spa"):
        assert times[variant]["stage_3"] == pytest.approx(cfg.ppo.steps * times[variant]["ppo_step"])
    for variant in ("spa", "search"):
        assert times[variant]["stage_1"] == pytest.approx(cfg.selfplay.groups * 2 * times[variant]["episode"])
        assert times[variant]["stage_2"] > times[variant]["sft_step"] > 0
    stages = [time[f"stage_{number}"] for time in times.values() for number in (1, 2, 3)]
    assert lake.numbers["total"] == pytest.approx(sum(stages))


@pytest.mark.slow
def test_figures_suggestions_and_verdict_are_printed(lake: Ran) -> None:
    text = lake.printed
    parts = ["base ", "states ", "hidden ", "world model ", "planner ", "time ", "verdict "]
    places = [text.index(f"\n{part}") for part in parts]
    assert places == sorted(places)
    assert text.count("\n             -> ") == 6
    assert text.splitlines()[-len(lake.numbers["verdict"]) :] == [f"  - {rule}" for rule in lake.numbers["verdict"]]


@pytest.mark.slow
def test_test_worlds_are_never_looked_at(lake: Ran) -> None:
    assert lake.splits == {"val", "selfplay", "train"}


def test_no_test_world_is_seen_by_a_diagnosis(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Chosen(Exception):
        pass

    def base(cfg, policy, task, worlds):
        raise Chosen(worlds)

    monkeypatch.setattr(measure, "_base", base)
    with pytest.raises(Chosen) as chosen:
        measure.diagnose(tiny_config(), tmp_path, worlds=8, groups=1, steps=1)
    assert {split_of(world.content) for world in chosen.value.args[0]} == {"val"}


@pytest.mark.slow
def test_nothing_is_left(lake: Ran) -> None:
    assert lake.left == ["found.json"]


@pytest.mark.slow
def test_a_world_without_listed_actions_is_not_planned_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller(monkeypatch)
    out = tmp_path / "kept"
    settings = [
        "sudoku",
        "env.max_turns=2",
        *SMALL,
        "variants=[base]",
        "--out",
        str(out),
        "--json",
        str(tmp_path / "a.json"),
    ]
    assert main(["diagnose", *settings]) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert "without listed actions" in found["planned"] and "planner.proposals" in found["planned"]
    assert found["learned"]["turns"] > 0
    assert found["times"] == [] and found["total"] == 0
    assert "not measured: in a world without listed actions" in capsys.readouterr().out
    assert (out / "selfplay" / "train.parquet").is_file()
    assert list((out / "sft").rglob("model.safetensors"))


@pytest.mark.slow
def test_a_base_without_a_valid_action_is_played_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller(monkeypatch)
    settings = ["countdown", *SMALL, "variants=[base]", "--json", str(tmp_path / "a.json")]
    assert main(["diagnose", *settings]) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["base"]["valid_turns"] < advice.FEW
    assert found["learned"]["policy"] == "random"
    assert any("have a valid action" in rule for rule in found["verdict"])


FEW = ["ppo.val_worlds=8", "eval.worlds=8", "sft.eval_worlds=8"]


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "spa diagnose frozen_lake"),
        (["frozen_lak"], "Did you mean 'frozen_lake'?"),
        (["frozen_lake", "engine=openai", "engine.model=x", "engine.base_url=http://localhost:1"], "chat server"),
        (["frozen_lake", "--model", "no/such/folder"], "no model folder no/such/folder"),
        (["frozen_lake", "env.id=nowhere"], "nowhere"),
        (["frozen_lake", "variants=[no_variant]"], "no_variant"),
        (["frozen_lake", "agent.think=false"], "agent.think=true"),
        (["frozen_lake", "--json", "no/such/found.json"], "--json"),
        (["frozen_lake", "--out", "full"], "not empty"),
        (["frozen_lake", "env.settings.size=2", "--worlds", "500"], "asked for by eval.worlds): choose larger worlds"),
        (["gym:Taxi", *FEW, "--worlds", "500"], "(500 asked for by --worlds): ask for fewer"),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    monkeypatch.setattr(measure.Policy, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr("spa.agent.worlds._SECONDS", 60.0)
    assert main(["diagnose", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "x"]


def test_chance_is_told_from_what_is_certain() -> None:
    kinds = [measure._hidden(measure.make_task(load_config(name))).kind for name in ("frozen_lake_slippery", "sokoban")]
    assert kinds == ["chance", "certain"]


def test_too_many_actions_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_ACTIONS", 3)
    cfg = load_config("frozen_lake", ["agent.planner=lookahead"])
    assert "4 listed actions are too many" in str(measure._planned(cfg, None, [], []))  # type: ignore[arg-type]
    monkeypatch.setattr(FrozenLake, "reset", lambda self, **options: ("a </b>", {}))
    assert "states contain '</'" in str(measure._planned(cfg, None, [], []))  # type: ignore[arg-type]


def test_what_variants_share_is_counted_once() -> None:
    time = VariantTime("search", 1.0, 1.0, 1.0, 0.0, 10.0, 20.0, 0.0)
    variants = [load_variant(name) for name in ("search", "plan", "spa_plan", "spa")]
    times = [time, time, replace(time, stage_3=5.0), replace(time, stage_1=100.0, stage_3=5.0)]
    assert measure._total(variants, times) == 10 + 20 + 5 + 100 + 20 + 5
    assert measure._total(variants, [*times[:3], replace(time, stage_2=None)]) is None


def ordinary() -> Diagnosis:
    """A world and a model for which no rule has anything to say."""
    return Diagnosis(
        name="x",
        model="y",
        worlds=32,
        base=Base(1.0, 1.0, Interval(0.3, 0.2, 0.4), 0.1),
        states=States(30.0, 29.0, 6.0),
        hidden=Outcomes("certain", ""),
        learned=Learned("model", 100, 10, 0.9, 50, 0.9, 0.2, {1: 0.9, 2: 0.8, 3: 0.7}, 0.9),
        planned=Planned("lookahead", Interval(0.3, 0.2, 0.4), Interval(0.0, -0.1, 0.1), 20.0),
        times=[VariantTime("spa", 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0)],
        total=3.0,
    )


def base(**values: Any) -> Callable[[Diagnosis], Diagnosis]:
    return lambda found: replace(found, base=replace(found.base, **values))


def learned(**values: Any) -> Callable[[Diagnosis], Diagnosis]:
    return lambda found: replace(found, learned=replace(found.learned, **values))  # type: ignore[type-var]


def gained(mean: float, low: float) -> Callable[[Diagnosis], Diagnosis]:
    return lambda found: replace(found, planned=replace(found.planned, gain=Interval(mean, low, 1.0)))  # type: ignore[type-var]


def against_chance(low: float) -> Callable[[Diagnosis], Diagnosis]:
    return lambda found: replace(found, planned=replace(found.planned, over_random=Interval(0.1, low, 1.0)))  # type: ignore[type-var]


def test_where_nothing_stands_out_it_says_so() -> None:
    assert verdict(ordinary()) == [advice.NOTHING]


def test_a_world_that_nobody_wins_may_only_be_cut_short_or_keep_a_score() -> None:
    lost = {"pass_1": Interval(0.0, 0.0, 0.1), "random": 0.0}
    (line,) = verdict(base(**lost)(ordinary()))
    assert "RL has nothing to reinforce" in line
    first, second = verdict(base(**lost, limited=1.0)(ordinary()))
    assert first.startswith("env.max_turns or env.max_actions ended every episode: raise them")
    assert second == line
    (line,) = verdict(base(**lost, scores_differ=True)(ordinary()))
    assert line.startswith("rewards differ, but no episode is a success")


def test_a_world_that_chance_wins_shows_nothing() -> None:
    (line,) = verdict(base(random=0.97)(ordinary()))
    assert line == "random actions already win 97.0 percent: this world cannot show what is learned"


def test_who_plays_itself_at_random_already_is_not_told_to() -> None:
    few = base(valid_turns=0.1)(ordinary())
    assert "self-play with selfplay.policy=random" in verdict(few)[0]
    assert "agent.prompt_after_sft=world_model" in verdict(replace(few, selfplay="random"))[0]


@pytest.mark.parametrize(
    "change, says",
    [
        (base(valid_turns=0.19), ["19% of the turns have a valid action", "selfplay.policy=random"]),
        (lambda d: replace(d, times=[replace(d.times[0], rows_per_turn=0.1)]), ["stage 1 of spa", "transitions"]),
        (base(pass_1=Interval(0.0, 0.0, 0.0), random=0.0), ["neither the base nor chance"]),
        (base(pass_1=Interval(0.8, 0.7, 0.9)), ["80.0 [70.0, 90.0]", "little to gain"]),
        (lambda d: replace(d, hidden=Outcomes("hidden", "")), ["agent.window=0"]),
        (lambda d: replace(d, hidden=Outcomes("chance", "")), ["planner.samples"]),
        (lambda d: replace(d, hidden=Outcomes("unclear", "")), ["planner.samples"]),
        (lambda d: replace(d, states=States(30.0, 20.0, 6.0)), ["coordinates", "variants=[vanilla,se,spa]"]),
        (base(failed=0.1), ["failed in 10%", "spa env check"]),
        (learned(top1=None, imagined={1: 0.0, 3: 0.0}), ["no prediction that is right"]),
        (learned(top1=0.49), ["49% of the states", "more self-play"]),
        (learned(imagined={1: 0.9, 2: 0.5, 3: 0.4}), ["planner.depth=2"]),
        (learned(imagined={1: 0.4, 2: 0.3}), ["after one imagined action", "a longer stage 2"]),
        (gained(0.12, 0.01), ["by 12 points", "variants=[search,plan,spa_plan]"]),
        (lambda d: against_chance(0.01)(gained(0.12, 0.01)(d)), ["by 12 points", "variants=[search,plan,spa_plan]"]),
    ],
)
def test_a_rule_says_what_to_do(change: Callable[[Diagnosis], Diagnosis], says: list[str]) -> None:
    rules = verdict(change(ordinary()))
    assert len(rules) == 1
    assert all(words in rules[0] for words in says)


@pytest.mark.parametrize(
    "change",
    [
        base(valid_turns=0.2),
        base(pass_1=Interval(0.79, 0.7, 0.9)),
        base(pass_1=Interval(0.0, 0.0, 0.0)),  # chance wins now and then
        lambda d: replace(d, states=States(30.0, None, 6.0)),
        learned(top1=0.5),
        learned(top1=None, imagined={1: 0.6}),
        learned(imagined={}),  # not measured
        gained(0.2, -0.01),  # may be luck
        gained(0.04, 0.01),  # too little to matter
        lambda d: against_chance(-0.01)(gained(0.12, 0.01)(d)),  # random moves may do as well
        lambda d: replace(d, learned="too large", planned="too large", times=[]),
    ],
)
def test_and_keeps_silent_short_of_it(change: Callable[[Diagnosis], Diagnosis]) -> None:
    assert verdict(change(ordinary())) == [advice.NOTHING]


@pytest.mark.parametrize("imagined", [{1: 0.9, 2: 0.5, 3: 0.4}, {1: 0.4, 2: 0.3}])
def test_where_a_planner_wins_no_other_stage_2_or_depth_is_suggested(imagined: dict[int, float]) -> None:
    (rule,) = verdict(gained(0.6, 0.4)(learned(imagined=imagined)(ordinary())))
    assert "variants=[search,plan,spa_plan]" in rule


def test_what_could_not_be_measured_is_named_with_the_reason() -> None:
    found = replace(ordinary(), learned="it does not fit", planned="it does not fit", total=None)
    text = "\n".join(advice.lines(found))
    assert text.count("not measured: it does not fit") == 2
    assert "-> not measured in all" in text


def test_wins_that_did_not_come_are_told() -> None:
    figures, _ = advice.planner_part(
        replace(ordinary(), planned=replace(ordinary().planned, wins_expected=8, wins_true=0.25))
    )  # type: ignore[type-var]
    assert figures.endswith("\n25% of the 8 wins that it expected came true")
    assert "expected" not in advice.planner_part(ordinary())[0]


@pytest.mark.parametrize(
    ("raw", "coordinates", "says"),
    [
        (10.0, 11.0, "familiar to this model; coordinates change little"),
        (10.0, 100.0, "familiar to this model; coordinates raise it"),
        (80.0, 210.0, "what stage 2 is for; coordinates raise it"),
        (10.0, None, "familiar to this model"),
    ],
)
def test_what_coordinates_change_is_said(raw: float, coordinates: float | None, says: str) -> None:
    assert advice.states_part(States(raw, coordinates, 6.0))[1].endswith(says)


def test_a_guess_among_all_tokens_makes_no_states_familiar() -> None:
    assert advice.states_part(States(511.0, None, 512.0, cells=False))[1].startswith("better than guessing each token")
    assert advice.states_part(States(741.0, None, 512.0, cells=False))[1].endswith("what stage 2 is for")


def test_random_play_is_not_advised_where_it_is_set() -> None:
    poor = replace(base(valid_turns=0.19)(ordinary()), times=[replace(ordinary().times[0], rows_per_turn=0.1)])
    assert sum("selfplay.policy=random" in rule for rule in verdict(poor)) == 2
    assert not any("selfplay.policy=random" in rule for rule in verdict(replace(poor, selfplay="random")))


def test_random_play_is_advised_only_where_there_is_any() -> None:
    rules = verdict(base(valid_turns=0.1, random=None)(ordinary()))
    assert rules and not any("random" in rule for rule in rules)


def test_the_time_of_a_variant_that_continues_one_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("{sft: false, rl: true, settings: {ppo.steps: 3}}")
    (tmp_path / "longer.yaml").write_text("{sft: false, rl: true, continues: mine, settings: {ppo.steps: 5}}")
    cfg = load_config("frozen_lake", [f"variants=[{tmp_path}/mine.yaml,{tmp_path}/longer.yaml]"])
    monkeypatch.setattr(measure, "_ppo_step", lambda *given: 1.0)
    longer = load_variant(f"{tmp_path}/longer.yaml")
    assert measure._time(cfg, longer, tiny_policy(), None).stage_3 == 2.0


def test_a_stage_1_that_is_not_played_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_probe", lambda *_: pytest.fail("it was"))
    given = measure._time(
        load_config("frozen_lake", ["sft.data=rows.parquet"]), load_variant("sft"), tiny_policy(), None
    )
    assert (given.episode, given.rows_per_turn, given.stage_1, given.stage_2) == (0.0, None, 0.0, None)


def test_a_constrained_stage_1_is_measured_as_it_plays() -> None:
    pytest.importorskip("llguidance")
    wild = ["model=tiny", "sampling.temperature=2.5", "sampling.max_tokens=150", "sampling.stop=[]"]
    policy = tiny_policy()
    rates = {
        constrained: measure._probe(load_config("frozen_lake", [*wild, f"selfplay.constrained={constrained}"]), policy)[
            1
        ]
        for constrained in ("true", "false")
    }
    assert rates["true"] == 1.0 and rates["false"] < 0.5
    assert policy.engine.constraint is None
    warmed = load_config("frozen_lake", ["model=tiny", "selfplay.warmup_rows=8"])
    assert measure._probe(warmed, policy) == (None, None, None)


def test_plans_go_as_deep_as_half_of_the_states_are_right() -> None:
    depths = {1: 0.9, 2: 0.5, 3: 0.3, 4: 0.6}
    assert advice.plan_depth(replace(ordinary().learned, imagined=depths)) == 2  # type: ignore[type-var]
    assert advice.shown_depths(depths) == [1, 3, 4]


def test_from_nothing_no_knowledge_is_inferred() -> None:
    nothing = Learned("random", 24, 6, None, 0, None, None, {1: 0.0, 3: 0.0})
    assert advice.world_model_part(nothing)[1] == "nothing shows that it knows this world"
    assert advice.states_part(States(None, None, 6.0))[0].startswith("not measured")


def test_episodes_whose_world_failed_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They say nothing of the model."""
    won = Episode(
        "Lake", 1, 0, content="a", success=True, turns=[Turn(0, "P", "u", "r", "G", executed=["Up"], format_ok=True)]
    )
    failed = replace(
        won, group=1, success=False, status="error", error="step: broken", turns=[Turn(0, "P", "u", "r", "P")]
    )
    played = iter([[won, failed], [won, failed]])
    monkeypatch.setattr(measure, "play_chunks", lambda *args: next(played))
    cfg, policy = load_config("frozen_lake"), tiny_policy()
    found, _ = measure._base(cfg, policy, make_task(cfg), [])
    assert (found.failed, found.valid_turns, found.format_rate) == (0.5, 1.0, 1.0)


def test_nothing_is_said_of_chance_that_was_not_measured() -> None:
    found = Base(1.0, 1.0, Interval(0.7, 0.6, 0.8), None)
    assert base_part(found)[1] == "nothing to compare it with: the world has no random actions"


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ([1] * 10 + [0] * 10, [1] * 5 + [0] * 15, "no better than chance"),  # 50.0 [30.0, 70.0] and 25.0
        ([1] * 16 + [0] * 4, [0] * 20, "it plays better than chance"),
        ([0] * 20, [1] * 16 + [0] * 4, "it plays worse than chance"),
    ],
)
def test_play_is_compared_with_chance_world_by_world(
    monkeypatch: pytest.MonkeyPatch, ours: list[int], theirs: list[int], says: str
) -> None:
    turn = Turn(0, "P", "u", "r", "G", executed=["Up"], format_ok=True)
    played = iter(
        [
            Episode("Lake", group, group, content=str(group), success=bool(won), turns=[turn])
            for group, won in enumerate(wins)
        ]
        for wins in (ours, theirs[::-1])
    )
    monkeypatch.setattr(measure, "play_chunks", lambda *args: next(played))
    found, results = measure._base(load_config("frozen_lake"), tiny_policy(), make_task(load_config("frozen_lake")), [])
    assert found.over_random is not None and found.over_random.mean == pytest.approx((sum(ours) - sum(theirs)) / 20)
    assert says in advice.base_part(found)[1]
    assert list(results) == ["base", "random"]


def test_the_small_world_model_plays_in_the_format_it_learned() -> None:
    cfg = load_config("frozen_lake", ["model=tiny", "env.state_format=coordinates", "planner.model=simulator"])
    cfg.planner.values, cfg.agent.planner = True, "best_of_n"  # of a practice, which this has not
    base = Base(1.0, 1.0, Interval(0.3, 0.2, 0.4), 0.1)
    small = measure._small(cfg, base, Outcomes("certain", ""), groups=2)
    assert small.env.state_format == small.selfplay.state_format == "grid"
    assert cfg.env.state_format == "coordinates"
    assert (small.planner.values, small.agent.planner) == (False, "lookahead")
    assert (small.planner.model, cfg.planner.model) == (None, "simulator"), "and it is asked itself, not the true world"
