"""What a comparison is said to show, case by case, and what is never said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spa.evaluate.bootstrap import Interval
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
    gaps = {name: means["spa"] - means[name] for name in given_scores}
    out["spa"] = score(spa, {name: Interval(gap, gap - half, gap + half) for name, gap in gaps.items()})
    return out


def test_a_run_below_its_own_base_is_no_success() -> None:
    """The audit's case: +15.2 over plain RL, while plain RL had fallen below the base and SPA stood below it."""
    assert verdict(variants([0.516], [0.352], [0.504])) == [
        "One training run of each variant: no claim about the recipe, only about these models.",
        "spa 50.4 is not above base 51.6: -1.2 [-4.2, +1.8].",
        "spa 50.4 is above vanilla 35.2: +15.2 [+12.2, +18.2].",
        "Plain RL ended below the base (35.2 against 51.6): being above plain RL is no achievement here.",
    ]


def test_plain_rl_below_a_base_that_is_beaten() -> None:
    assert verdict(variants([0.216], [0.202], [0.388]))[-1] == "Plain RL ended below the base (20.2 against 21.6)."


def test_the_same_over_seeds() -> None:
    lines = verdict(variants([0.51, 0.52], [0.35, 0.36], [0.50, 0.51]))
    assert lines[0] == "No claim: over 2 seeds spa is not shown to be above its untrained base."


def test_better_than_both() -> None:
    lines = verdict(variants([0.16, 0.16, 0.17], [0.43, 0.47, 0.42], [0.55, 0.54, 0.56], se=[0.54, 0.53, 0.55]))
    assert lines[0] == "spa is better than its untrained base and than plain RL, over 3 seeds."
    assert lines[-1] == "spa 55.0 is not clearly above se 54.0: +1.0 [-2.0, +4.0]."


def test_not_told_from_plain_rl_and_below_a_control() -> None:
    lines = verdict(variants([0.16, 0.17], [0.50, 0.51], [0.51, 0.52], shuffled=[0.60, 0.60]))
    assert lines[0] == "No claim: over 2 seeds spa is not shown to be above plain RL."
    assert lines[-1] == "spa 51.5 is below shuffled 60.0: -8.5 [-11.5, -5.5]."


def test_without_a_variant_to_compare_with() -> None:
    alone = {"base": score([0.1, 0.1]), "spa": score([0.5, 0.5], {"base": Interval(0.4, 0.3, 0.5)})}
    assert verdict(alone)[0] == "No claim: spa was not compared with plain RL."
    assert verdict({"base": score([0.1])}) == []
    assert verdict({"base": score([0.1]), "vanilla": score([0.1])}) == []


def test_a_difference_of_one_common_seed_carries_no_claim() -> None:
    table = variants([0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.5, 0.5, 0.5])
    table["vanilla"] = VariantScore({2: 0.2})
    lines = verdict(table)
    assert lines[0] == "No claim: spa and plain RL have fewer than two seeds in common."
    assert lines[2] == "spa 50.0 is above vanilla 20.0: +30.0 [+27.0, +33.0] on what both have, 1 of 3 seeds."


def test_bimodal_seeds_are_named() -> None:
    lines = verdict(variants([0.14, 0.14, 0.14], [0.15, 0.16, 0.55], [0.60, 0.61, 0.62]))
    assert lines[-1].startswith("The seeds of vanilla look bimodal (2 at 15.0 to 16.0, 1 at 55.0)")


def test_whose_verdict_it_is() -> None:
    one = score([0.1])
    assert main_variant({"base": one, "vanilla": one, "masked": one, "spa": one, "se": one}) == "spa"
    assert main_variant({"base": one, "vanilla": one, "no_coordinates": one, "shuffled": one}) == "no_coordinates"
    assert main_variant({"base": one, "vanilla": one, "my_variant": one}) == "my_variant"


share = st.floats(0, 1)


@given(
    st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.lists(share, min_size=n, max_size=n)] * 3)), st.floats(0, 0.5)
)
def test_better_is_said_only_of_two_seeds_above_both(values: tuple[list[float], ...], half: float) -> None:
    base, vanilla, spa = values
    table = variants(base, vanilla, spa, half)
    lines = verdict(table)
    lows = [table["spa"].differences[other].low for other in ("base", "vanilla")]
    claimed = any("better" in line for line in lines)
    assert claimed == (len(spa) >= 2 and min(lows) > 0)
    assert not claimed or "better" in lines[0]


def test_what_a_planner_reaches_is_not_the_recipe() -> None:
    variants = {name: VariantScore({0: 0.5}) for name in ("base", "vanilla", "plan", "plan+lookahead")}
    assert main_variant(variants) == "plan"
    assert main_variant({"base": variants["base"], "own": variants["plan"], "own+mcts": variants["plan"]}) == "own"
    assert main_variant({**variants, "spa": VariantScore({0: 0.1})}) == "spa"
