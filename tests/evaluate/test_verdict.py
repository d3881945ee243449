"""What a comparison is said to show, case by case, and what is never said."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spa.evaluate.bootstrap import Interval, percent
from spa.evaluate.verdict import VariantScore, main_variant, verdict


def score(by_seed: list[float], differences: dict[str, Interval] | None = None) -> VariantScore:
    return VariantScore(dict(enumerate(by_seed)), differences or {})


def variants(
    base: list[float], vanilla: list[float], spa: list[float], half: float = 0.03, **others: list[float]
) -> dict[str, VariantScore]:
    """Scores whose differences to ``spa`` have intervals of ``half`` on each side."""
    given_scores = {"base": base, "vanilla": vanilla, **others}
    means = {name: sum(values) / len(values) for name, values in {**given_scores, "spa": spa}.items()}
    out = {name: score(values) for name, values in given_scores.items()}
    fall = means["vanilla"] - means["base"]
    out["vanilla"] = score(vanilla, {"base": Interval(fall, fall - half, fall + half)})
    gaps = {name: means["spa"] - means[name] for name in given_scores}
    out["spa"] = score(spa, {name: Interval(gap, gap - half, gap + half) for name, gap in gaps.items()})
    return out


def test_a_run_below_its_own_base_is_no_success() -> None:
    """The audit's case: +15.2 over plain RL, while plain RL had fallen below the base and SPA stood below it."""
    table = variants([0.516], [0.352], [0.504])
    table["spa"] = replace(table["spa"], steps=6)
    assert verdict(table) == [
        "spa 50.4 is not above its base 51.6 and is above plain RL 35.2; plain RL fell below the base; "
        "one seed, 6 PPO steps: no claim.",
        "spa 50.4 is not above base 51.6: -1.2 [-4.2, +1.8].",
        "spa 50.4 is above vanilla 35.2: +15.2 [+12.2, +18.2].",
    ]


def test_where_nobody_won_rewards_are_told() -> None:
    """A world with a score and no success."""
    table = variants([0.0], [0.0], [0.0])
    rewards = {"base": 0.37, "vanilla": 1.44, "spa": 1.5}
    scored = {name: replace(entry, reward=rewards[name]) for name, entry in table.items()}
    told = "No episode was won; mean reward: base 0.37, vanilla 1.44, spa 1.50. Where a score counts, let the world call it"
    assert verdict(scored)[1].startswith(told)
    del scored["spa"]
    assert verdict(scored)[0].startswith("No episode was won; mean reward: base 0.37, vanilla 1.44.")
    assert not verdict({name: replace(entry, reward=1.0) for name, entry in scored.items()}), "all the same"
    won = {"base": replace(scored["base"], by_seed={0: 0.1}), "vanilla": scored["vanilla"]}
    assert not verdict(won)


def test_the_same_over_seeds() -> None:
    lines = verdict(variants([0.51, 0.52], [0.35, 0.36], [0.50, 0.51]))
    assert lines[0] == (
        "spa 50.5 is not above its base 51.5 and is above plain RL 35.5; plain RL fell below the base; 2 seeds: no claim."
    )


def test_better_than_both() -> None:
    lines = verdict(variants([0.16, 0.16, 0.17], [0.43, 0.47, 0.42], [0.55, 0.54, 0.56], se=[0.54, 0.53, 0.55]))
    assert lines[0] == "spa 55.0 is above its base 16.3 and is above plain RL 44.0; 3 seeds: better than both."
    assert lines[3] == "spa 55.0 is not clearly above se 54.0: +1.0 [-2.0, +4.0] (coordinates without SFT)."


def test_below_both() -> None:
    assert verdict(variants([0.5, 0.5], [0.6, 0.6], [0.4, 0.4]))[0] == (
        "spa 40.0 is below its base 50.0 and is below plain RL 60.0; 2 seeds: no claim."
    )


def test_only_the_best_control_is_named_and_what_it_leaves_open() -> None:
    table = variants(
        [0.16, 0.17], [0.30, 0.31], [0.51, 0.52], shuffled=[0.50, 0.52], imitation=[0.2, 0.2], other=[0.1, 0.1]
    )
    assert verdict(table)[1:] == [
        "spa 51.5 is above base 16.5: +35.0 [+32.0, +38.0].",
        "spa 51.5 is above vanilla 30.5: +21.0 [+18.0, +24.0].",
        "spa 51.5 is not clearly above shuffled 51.0: +0.5 [-2.5, +3.5] (the best control).",
        "spa 51.5 is above other 10.0: +41.5 [+38.5, +44.5].",
        "It is not shown that learning true states is the reason: shuffled does without them.",
    ]
    beaten = variants([0.16, 0.17], [0.30, 0.31], [0.51, 0.52], shuffled=[0.20, 0.22])
    assert not [line for line in verdict(beaten) if "reason" in line or "why" in line]
    once = variants([0.16, 0.17], [0.30, 0.31], [0.51, 0.52], shuffled=[0.20])
    assert verdict(once)[-1] == "That learning true states is the reason is tested on one seed alone (shuffled)."
    with_rl = {"spa": replace(once["spa"], steps=6), "shuffled": replace(once["shuffled"], steps=6)}
    untrained = variants([0.16, 0.17], [0.30, 0.31], [0.51, 0.52], shuffled=[0.20], plan_shuffled=[0.2, 0.2])
    assert verdict({**untrained, **with_rl, "spa": replace(untrained["spa"], steps=6)})[-1].endswith(
        "is tested on one seed alone (shuffled)."
    ), "a control without RL is no test of a recipe with it"
    alone = variants([0.16, 0.17], [0.30, 0.31], [0.51, 0.52])
    assert verdict(alone)[-1] == (
        "No control is compared (such as shuffled: SFT on shuffled states), so it is open why."
    )


def timed(own: float, **seconds: float) -> list[str]:
    table = variants(
        [0.16, 0.17], [0.30, 0.31], [0.51, 0.52], **{name: [0.40, 0.41] for name in seconds if name != "vanilla"}
    )
    for name, value in {"spa": own, **seconds}.items():
        table[name] = replace(table[name], seconds=value)
    return [line for line in verdict(table) if "time" in line]


def test_the_difference_at_equal_time() -> None:
    assert timed(300, vanilla=150) == [
        "Processor time: 5 min 00 s for spa, 2 min 30 s for vanilla; the difference at equal time was not measured "
        "(vanilla_longer)."
    ]
    assert timed(300, vanilla=295) == []
    assert timed(300, vanilla=150, vanilla_longer=310) == [
        "Processor time: 5 min 00 s for spa, 5 min 10 s for vanilla_longer."
    ]
    assert timed(300, vanilla=150, vanilla_longer=200) == [
        "Processor time: 5 min 00 s for spa, 3 min 20 s for vanilla_longer, so this is no comparison at equal time."
    ]
    table = variants([0.16, 0.17], [0.30, 0.31], [0.51, 0.52], vanilla_longer=[0.50, 0.51])
    assert (
        "spa 51.5 is not clearly above vanilla_longer 50.5: +1.0 [-2.0, +4.0] (plain RL, trained longer)."
        in verdict(table)
    )


def test_turns_that_were_cut_off_are_said() -> None:
    table = variants([0.1, 0.1], [0.0, 0.0], [0.0, 0.0])
    table |= {name: replace(table[name], cut_off=share) for name, share in (("vanilla", 0.2), ("spa", 0.992))}
    cut = [line for line in verdict(table) if "cut off" in line]
    assert cut == ["99% of the test turns of spa were cut off (sampling.max_tokens, max_tokens_base)."]


def test_without_a_variant_to_compare_with() -> None:
    alone = {"base": score([0.1, 0.1]), "spa": score([0.5, 0.5], {"base": Interval(0.4, 0.3, 0.5)})}
    assert verdict(alone)[0] == "spa 50.0 is above its base 10.0 and was not compared with plain RL; 2 seeds: no claim."
    assert verdict({"base": score([0.1])}) == []
    assert verdict({"base": score([0.1]), "vanilla": score([0.1])}) == []
    assert verdict({name: score([0.1]) for name in ("base", "vanilla", "vanilla_longer")}) == []


def test_a_difference_of_one_common_seed_carries_no_claim() -> None:
    table = variants([0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.5, 0.5, 0.5])
    table["vanilla"] = VariantScore({2: 0.2})
    lines = verdict(table)
    assert lines[0] == (
        "spa 50.0 is above its base 10.0 and is above plain RL 20.0 (one seed in common); 3 seeds: no claim."
    )
    assert lines[2] == "spa 50.0 is above vanilla 20.0: +30.0 [+27.0, +33.0] on what both have, 1 of 3 seeds."


def test_where_plain_rl_lacks_a_seed_both_means_are_of_the_common_ones() -> None:
    table = variants([0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.6, 0.6, 0.3])
    table["vanilla"] = VariantScore({0: 0.2, 1: 0.2})
    assert verdict(table)[0] == (
        "spa 50.0 is above its base 10.0 and is above plain RL 20.0 (2 of 3 seeds, where spa wins 60.0); 3 seeds: better than both."
    )
    table["vanilla"] = VariantScore({7: 0.2})
    assert "is above plain RL 20.0 (no seed in common); 3 seeds: no claim." in verdict(table)[0]
    assert verdict(table)[2] == "spa 50.0 is above vanilla 20.0: +30.0 [+27.0, +33.0] (no seed in common)."
    times = {name: replace(entry, seconds=600.0) for name, entry in table.items()}
    longer = {"vanilla_longer": replace(times["vanilla"], by_seed={0: 0.2})}
    assert "Processor time: 10 min 00 s for spa, 10 min 00 s for vanilla_longer (3 and 1 seeds)." in verdict(
        times | longer
    )


def test_bimodal_seeds_are_named() -> None:
    lines = verdict(variants([0.14, 0.14, 0.14], [0.15, 0.16, 0.55], [0.60, 0.61, 0.62]))
    assert lines[-1].startswith("The seeds of vanilla look bimodal (2 at 15.0 to 16.0, 1 at 55.0)")


def test_whose_verdict_it_is() -> None:
    one = score([0.1])
    assert main_variant({"base": one, "vanilla": one, "masked": one, "spa": one, "se": one}) == "spa"
    assert main_variant({"base": one, "vanilla": one, "no_coordinates": one, "shuffled": one}) == "no_coordinates"
    assert main_variant({"base": one, "vanilla": one, "my_variant": one}) == "my_variant"
    assert main_variant({"base": one, "vanilla": one, "my_variant": one, "se": one, "shuffled": one}) == "my_variant"
    assert main_variant({"base": one, "vanilla": one, "shuffled": one}) == "shuffled", "there is no other"
    assert main_variant(["base", "my_variant", "my_variant_shuffled", "vanilla_deep"]) == "my_variant"


share = st.floats(0, 1)
OTHERS = ("vanilla_longer", "se", "shuffled", "imitation", "mine")


@st.composite
def made_up(draw: st.DrawFn) -> dict[str, VariantScore]:
    """A table as a run or ``spa reproduce`` may give: any variants, seeds of each, differences and times."""
    names = ["base", "vanilla", *draw(st.lists(st.sampled_from(OTHERS), unique=True))]
    table = {}
    for name in [*names, "spa"]:
        seeds = draw(st.sets(st.integers(0, 5), min_size=1))
        table[name] = VariantScore(
            {seed: draw(share) for seed in sorted(seeds)},
            steps=draw(st.integers(0, 100)),
            seconds=draw(st.floats(0, 1e5)),
        )
    ours = table["spa"]
    differences = {}
    for name in draw(st.lists(st.sampled_from(names), unique=True, min_size=1)):
        mean, half = ours.mean - table[name].mean, draw(st.floats(0, 0.5))
        differences[name] = Interval(mean, mean - half, mean + half)
    table["spa"] = replace(ours, differences=differences)
    return {name: table[name] for name in draw(st.permutations(list(table)))}


@given(made_up())
def test_better_is_said_only_of_two_seeds_above_both(table: dict[str, VariantScore]) -> None:
    lines, ours = verdict(table), table["spa"]
    claimed = "better" in lines[0]
    beaten = [o for o in ("base", "vanilla") if o in ours.differences and ours.differences[o].low > 0]
    enough = len(ours.by_seed) >= 2 and all(ours.seeds_with(table[other]) >= 2 for other in beaten)
    assert claimed == (len(beaten) == 2 and enough)
    assert claimed != lines[0].endswith("no claim.")
    assert not any("better" in line for line in lines[1:])


@given(made_up())
def test_all_that_was_measured_is_said_once(table: dict[str, VariantScore]) -> None:
    lines, ours = verdict(table), table["spa"]
    best = max((o for o in ("shuffled", "imitation") if o in table), key=lambda o: table[o].mean, default="")
    for other, difference in ours.differences.items():
        fact = f" {other} {100 * table[other].mean_with(ours):.1f}: {percent(difference, sign=True)}"
        left_out = other in ("shuffled", "imitation") and other != best
        assert sum(fact in line for line in lines) == (not left_out)
    assert all(line.endswith(".") and "\n" not in line for line in lines)


def test_what_a_planner_reaches_is_not_the_recipe() -> None:
    variants = {name: VariantScore({0: 0.5}) for name in ("base", "vanilla", "plan", "plan+lookahead")}
    assert main_variant(variants) == "plan"
    assert main_variant({"base": variants["base"], "own": variants["plan"], "own+mcts": variants["plan"]}) == "own"
    assert main_variant({**variants, "spa": VariantScore({0: 0.1})}) == "spa"


def test_a_planner_is_shown_with_its_price_and_the_simulator_is_no_agent() -> None:
    interval = Interval(0.79, 0.75, 0.83)
    table = {
        "base": score([0.21]),
        "search": replace(score([0.21], {"base": Interval(0, -0.01, 0.01)}), tokens=16),
        "search+lookahead": replace(score([1.0], {"base": interval}), tokens=1462.4),
        "simulator": score([0.21], {"base": Interval(0, -0.01, 0.01)}),
        "simulator+lookahead": score([1.0], {"base": interval}),
    }
    assert verdict(table) == [
        "search 21.0 is not above its base 21.0 and was not compared with plain RL; one seed: no claim.",
        "search 21.0 is not above base 21.0: +0.0 [-1.0, +1.0].",
        "search+lookahead 100.0 is above base 21.0: +79.0 [+75.0, +83.0] "
        "(with a planner, for 1,462 instead of 16 tokens an episode).",
    ]
    table["search"] = replace(table["search"], tokens=0)
    assert verdict(table)[-1].endswith("[+75.0, +83.0] (with a planner).")
    assert main_variant(["base", "simulator"]) is None
    assert main_variant(["base", "vanilla", "plan", "spa_dream", "search", "plan_shuffled"]) == "plan"


def test_a_control_without_rl_is_compared_with_what_it_controls() -> None:
    table = variants([0.2] * 3, [0.6] * 3, [0.9] * 3, plan_shuffled=[0.2] * 3, plan=[0.8] * 3)
    ours = replace(table.pop("spa"), steps=80)
    table["spa_plan"] = ours
    open_still = "plan_shuffled has no RL, so it is open what RL would make of it."
    assert verdict(table)[-1] == open_still
    with_rl = {**table, "spa_plan_shuffled": replace(table["vanilla"], differences={}, steps=80)}
    with_rl["spa_plan"] = replace(ours, differences={**ours.differences, "spa_plan_shuffled": Interval(0.3, 0.2, 0.4)})
    assert not any("open" in line for line in verdict(with_rl)), "it is not open: it was trained"
    table["plan"] = replace(table["plan"], differences={"plan_shuffled": Interval(0.6, 0.5, 0.7)})
    assert verdict(table)[-1] == (
        "plan_shuffled has no RL; of what has none, plan 80.0 is above plan_shuffled 20.0: +60.0 [+50.0, +70.0]."
    )
    table["plan_shuffled"] = replace(table["plan_shuffled"], steps=80)
    assert not any("no RL" in line for line in verdict(table))


def test_every_control_has_to_be_beaten_and_compared() -> None:
    table = variants([0.2] * 3, [0.4] * 3, [0.9] * 3, shuffled=[0.5] * 3, imitation=[0.6] * 3)
    assert not any("open" in line or "not shown" in line for line in verdict(table))
    wide = {**table["spa"].differences, "shuffled": Interval(0.4, -0.5, 0.9)}
    table["spa"] = replace(table["spa"], differences=wide)
    assert verdict(table)[-1] == (
        "It is not shown that learning true states is the reason: "
        "spa is not clearly above shuffled, and its seeds are too few to tell."
    )
    del wide["shuffled"]
    assert verdict(table)[-1] == "spa was not compared with shuffled, so it is open why."


def test_a_wide_interval_does_not_say_that_a_control_does_without_true_states() -> None:
    """Two seeds: spa .95 and .90, shuffled .15 and .45."""
    table = variants([0.1, 0.1], [0.2, 0.2], [0.95, 0.90], shuffled=[0.15, 0.45], imitation=[0.9, 0.9])
    lead = table["spa"].differences["vanilla"].mean
    beginning = "It is not shown that learning true states is the reason: "
    for shuffled, imitation, said in (
        (
            Interval(0.619, -1, 1),
            Interval(0.5, 0.4, 0.6),
            "spa is not clearly above shuffled, and its seeds are too few to tell.",
        ),
        (Interval(0.1, -0.1, lead / 2), Interval(0.5, 0.4, 0.6), "shuffled does without them."),
        (Interval(-0.2, -0.3, -0.1), Interval(0.5, 0.4, 0.6), "shuffled does without them."),
        (
            Interval(0.619, -1, 1),
            Interval(0.0, -0.1, 0.1),
            "imitation does without them; spa is not clearly above shuffled, and its seeds are too few to tell.",
        ),
    ):
        differences = {**table["spa"].differences, "shuffled": shuffled, "imitation": imitation}
        table["spa"] = replace(table["spa"], differences=differences)
        assert verdict(table)[-1] == beginning + said


def test_means_beside_a_difference_are_of_the_same_seeds() -> None:
    table = variants([0.2] * 4, [0.4, 0.4, 0.8, 0.8], [0.9, 0.9])
    assert " is above vanilla 40.0: " in verdict(table)[2] and "on what both have, 2 of 4 seeds" in verdict(table)[2]
    assert " plain RL 40.0;" in verdict(table)[0]
