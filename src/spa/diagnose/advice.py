"""What ``spa diagnose`` found, and what it suggests: plain rules over plain numbers. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spa.common.progress import duration
from spa.evaluate.bootstrap import Interval, percent

# Rules of thumb, all of them: they were chosen to sort plain cases, not fitted to any training.
FEW = 0.2  # share of turns or rows below which a stage has hardly anything to learn from
HIGH = 0.8  # Pass@1 of the base above which little can be gained
LOWER = 0.75  # perplexity with coordinates over that without: below, they lower it clearly
FAR = 2.0  # perplexity over that of a guess: above, states are foreign to the model
GAIN = 0.05  # of Pass@1: five points
TOLD_APART = 0.5  # share of states in which the truth beats its corruptions
EXACT = 0.5  # share of imagined states that are right: as deep as this is reached, plans may go


@dataclass(frozen=True)
class Base:
    """The untrained model on validation worlds.

    ``format_rate`` and ``valid_turns`` are shares of the turns: those in the format, and those with an action that the world took.
    ``random`` is the Pass@1 of uniformly random actions; None where the world has none.
    """

    format_rate: float
    valid_turns: float
    pass_1: Interval
    random: float | None


@dataclass(frozen=True)
class States:
    """Perplexity per token of states, and what guessing each cell gets; None for a way of showing them that the world lacks."""

    raw: float | None
    coordinates: float | None
    guess: float


@dataclass(frozen=True)
class Hidden:
    """``kind``: ``certain``, ``chance`` or ``hidden`` (``spa.envs.check_markov``); ``unknown`` where nothing plays at random."""

    kind: str
    text: str


@dataclass(frozen=True)
class Learned:
    """The model after a small stage 2 on transitions.

    Attributes:
        policy: who played for them: model or random.
        rows, steps: of the training.
        prediction: share of predictions on validation worlds that are exact, ``turns`` in number; None where it wrote none.
        top1, chance: share of states in which the truth is likelier than its corruptions, and what guessing gets.
        imagined: share of exact states by how many actions ahead; empty where nothing walks at random.
        ended_auc: of the model's probability for the end, at the first depth where some walks ended and others did not.
    """

    policy: str
    rows: int
    steps: int
    prediction: float | None
    turns: int
    top1: float | None
    chance: float | None
    imagined: dict[int, float]
    ended_auc: float | None


@dataclass(frozen=True)
class Planned:
    """A planner in that model's predictions, on the worlds that the base played; ``gain`` is its Pass@1 less the base's."""

    kind: str
    pass_1: Interval
    gain: Interval
    questions: float  # to the model, an episode


@dataclass(frozen=True)
class VariantTime:
    """What was measured for a variant, and how long its stages would last. In seconds; None: not measured; 0: no such stage.

    ``kept`` is the share of stage 1's turns that gave a row (transitions: more than one can come of a turn).
    """

    variant: str
    episode: float | None
    kept: float | None
    sft_step: float | None
    ppo_step: float | None
    stage_1: float | None
    stage_2: float | None
    stage_3: float | None


@dataclass(frozen=True)
class Diagnosis:
    """All of it. Where a part could not be measured a text says why."""

    name: str
    model: str
    worlds: int
    base: Base
    states: States
    hidden: Hidden
    learned: Learned | str
    planned: Planned | str
    times: list[VariantTime]
    total: float | None  # seconds of all stages of all variants; what variants share is done once
    seconds: float = 0.0  # that the diagnosis took


def lines(found: Diagnosis) -> list[str]:
    """The whole answer: of each part the figures, and below them what they suggest; then the verdict."""
    parts = [
        ("base", base_figures(found.base), suggest_base(found.base)),
        ("states", states_figures(found.states), suggest_states(found.states)),
        ("hidden", hidden_figures(found.hidden), suggest_hidden(found.hidden)),
        ("world model", learned_figures(found.learned), suggest_learned(found.learned)),
        ("planner", planned_figures(found), suggest_planned(found.planned)),
        ("time", *times_lines(found)),
    ]
    out = [f"{found.name}, {found.model}, {found.worlds} validation worlds, {duration(found.seconds)}"]
    for title, figures, suggestion in parts:
        first, *more = figures.splitlines()
        out += [f"{title:<13}{first}", *(f"{'':13}{line}" for line in more), f"{'':13}-> {suggestion}"]
    out += ["verdict (rules of thumb; no promise of what training reaches)"]
    return out + [f"  - {text}" for text in verdict(found)]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def base_figures(base: Base) -> str:
    chance = "none to compare" if base.random is None else f"{100 * base.random:.1f}"
    return (
        f"in the format {_share(base.format_rate)}, turns with a valid action {_share(base.valid_turns)}, "
        f"Pass@1 {percent(base.pass_1)}, random policy {chance}"
    )


def suggest_base(base: Base) -> str:
    if base.valid_turns < FEW:
        return "it hardly plays: more sampling.max_tokens, a larger model, or random self-play"
    if base.random is not None and base.pass_1.low > base.random:
        return "it plays better than chance"
    if base.random is not None and base.pass_1.high < base.random:
        return "it plays worse than chance: its habits cost it"
    return "no better than chance, as far as these worlds tell"


def states_figures(states: States) -> str:
    shown = {"raw": states.raw, "with coordinates": states.coordinates}
    parts = [f"{title} {value:.1f}" for title, value in shown.items() if value is not None]
    return f"perplexity {', '.join(parts)}, random guess {states.guess:.1f}"


def suggest_states(states: States) -> str:
    known = [value for value in (states.raw, states.coordinates) if value is not None]
    both = states.raw is not None and states.coordinates is not None
    if both and coordinates_help(states):
        return "coordinates lower it clearly: variants that show them (se, spa); longer texts repeat themselves, so try both"
    if known and min(known) <= states.guess * FAR:
        return "not far from a guess: the states are no foreign text to this model" + (
            ", and coordinates change little" if both else ""
        )
    return "the states are foreign text to this model: what stage 2 is for" + (
        "; coordinates do not change it" if both else ""
    )


def coordinates_help(states: States) -> bool:
    """Whether they lower the perplexity clearly; False where the world does not know both ways."""
    return states.raw is not None and states.coordinates is not None and states.coordinates < LOWER * states.raw


def hidden_figures(hidden: Hidden) -> str:
    return f"one outcome each: {hidden.text}" if hidden.kind == "certain" else hidden.text


def suggest_hidden(hidden: Hidden) -> str:
    return {
        "certain": "nothing hidden was met: predictions can be exact",
        "chance": "chance decides: no prediction can always be right; planner.samples=4 or so asks for several outcomes",
        "hidden": "the state does not say enough: it can be neither predicted nor planned in exactly",
        "unknown": "see for yourself whether equal states and actions have equal outcomes",
    }[hidden.kind]


def learned_figures(learned: Learned | str) -> str:
    if isinstance(learned, str):
        return f"not measured: {learned}"
    walks = ", ".join(f"{_share(learned.imagined[depth])} at depth {depth}" for depth in shown_depths(learned.imagined))
    auc = "-" if learned.ended_auc is None else f"{learned.ended_auc:.2f}"
    return (
        f"{learned.rows} transitions ({learned.policy} policy), {learned.steps} steps: predictions exact "
        f"{_share(learned.prediction)} of {learned.turns}, truth beats its corruptions {_share(learned.top1)} (chance "
        f"{_share(learned.chance)})\nimagined states exact {walks or '-'}; AUC of the end {auc}"
    )


def shown_depths(imagined: dict[int, float]) -> list[int]:
    """The first depth, the third and the last."""
    return sorted({1, 3, max(imagined)} & set(imagined)) if imagined else []


def suggest_learned(learned: Learned | str) -> str:
    if isinstance(learned, str):
        return "nothing can be said of a world model"
    if learned.top1 is None and not learned.imagined:
        return "it wrote no prediction to judge"
    reach = plan_depth(learned)
    if learned.top1 is not None and learned.top1 < TOLD_APART:
        return "it does not know this world yet"
    if not learned.imagined:
        return "it tells true states from false ones"
    if not reach:
        return "it knows some of this world, but cannot imagine one move"
    return f"half of the states it imagines are exact up to depth {reach}"


def plan_depth(learned: Learned) -> int:
    """How many actions ahead at least half of the imagined states are exact."""
    reach = 0
    for depth, share in sorted(learned.imagined.items()):
        if share < EXACT:
            break
        reach = depth
    return reach


def planned_figures(found: Diagnosis) -> str:
    planned = found.planned
    if isinstance(planned, str):
        return f"not measured: {planned}"
    chance = "" if found.base.random is None else f", random {100 * found.base.random:.1f}"
    return (
        f"{planned.kind} Pass@1 {percent(planned.pass_1)}; base {100 * found.base.pass_1.mean:.1f}{chance}; gain over the base "
        f"{percent(planned.gain, sign=True)}; {planned.questions:.0f} questions an episode"
    )


def suggest_planned(planned: Planned | str) -> str:
    if isinstance(planned, str):
        return "the paper's recipe needs no planner"
    if pays(planned):
        return "imagination is good enough to act on"
    if planned.gain.high < 0:
        return "acting on it is worse than the base"
    return "no clear gain, as far as these worlds tell"


def pays(planned: Planned) -> bool:
    """Whether the planner is better than the base, and not by chance alone."""
    return planned.gain.mean >= GAIN and planned.gain.low > 0


def times_lines(found: Diagnosis) -> tuple[str, str]:
    rows = []
    for time in found.times:
        steps = {"an episode of stage 1": time.episode, "a step of stage 2": time.sft_step, "a PPO step": time.ppo_step}
        each = ", ".join(f"{name} {_seconds(value)}" for name, value in steps.items() if value != 0)
        stages = {"stage 1": time.stage_1, "stage 2": time.stage_2, "stage 3": time.stage_3}
        whole = ", ".join(f"{name} {_duration(value)}" for name, value in stages.items() if value != 0)
        rows.append(f"{time.variant}: {whole or 'nothing to train'}" + (f" ({each})" if each else ""))
    rest = (
        "at this moment's load, without validation, evaluation and practice; training makes answers longer or shorter"
    )
    return "\n".join(
        rows
    ) or "no variants", f"{_duration(found.total)} in all, what variants share counted once; {rest}"


def _seconds(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} s"


def _duration(value: float | None) -> str:
    return "not measured" if value is None else duration(value)


# The rules of the verdict: what to do, or None where a rule does not apply.


def few_actions(found: Diagnosis) -> str | None:
    if found.base.valid_turns >= FEW:
        return None
    return (
        f"only {_share(found.base.valid_turns)} of the turns have a valid action: RL will see little reward; a larger model, more "
        "sampling.max_tokens, or self-play with selfplay.policy=random and stage 2 first"
    )


def few_rows(found: Diagnosis) -> str | None:
    poor = [time for time in found.times if time.kept is not None and time.kept < FEW]
    if not poor:
        return None
    return (
        f"stage 1 of {', '.join(time.variant for time in poor)} will keep few rows ({_share(poor[0].kept)} of the turns): a larger "
        "model, selfplay.policy=random, or selfplay.rows=transitions with selfplay.filter=false, which needs valid actions alone"
    )


def no_reward(found: Diagnosis) -> str | None:
    if found.base.pass_1.mean > 0 or (found.base.random or 0) > 0:
        return None
    return (
        "neither the base nor chance ever won: RL has nothing to reinforce; an easier world first, or curriculum.levels"
    )


def little_to_gain(found: Diagnosis) -> str | None:
    if found.base.pass_1.mean < HIGH:
        return None
    return f"the base already wins {percent(found.base.pass_1)} percent: little to gain; try a harder world"


def hides(found: Diagnosis) -> str | None:
    if found.hidden.kind != "hidden":
        return None
    return (
        "the world hides something that counts: neither planning nor predictions can be exact; plain RL with history "
        "(agent.window=0), or a world whose state says more"
    )


def chance(found: Diagnosis) -> str | None:
    if found.hidden.kind != "chance":
        return None
    return "chance decides: plan with planner.samples above 1, and expect no exact predictions"


def coordinates(found: Diagnosis) -> str | None:
    if not coordinates_help(found.states):
        return None
    return "coordinates lower the states' perplexity clearly: variants=[vanilla,se,spa] tells whether they alone help"


def not_learned(found: Diagnosis) -> str | None:
    learned = found.learned
    if isinstance(learned, str) or learned.top1 is None or learned.top1 >= TOLD_APART:
        return None
    return (
        f"the truth beats its corruptions in {_share(learned.top1)} of the states only (chance {_share(learned.chance)}): more "
        "self-play, more epochs or a larger model first (here: --groups, --steps)"
    )


def shallow(found: Diagnosis) -> str | None:
    learned, planned = found.learned, found.planned
    if isinstance(learned, str) or not learned.imagined:
        return None
    if isinstance(planned, Planned) and pays(planned):  # a planner looks again after each move and can do with less
        return None
    reach, asked = plan_depth(learned), max(learned.imagined)
    if not 0 < reach < asked:
        return None
    return (
        f"after {reach} of {asked} imagined actions fewer than half of the states are exact: planner.depth={reach}, or a "
        "longer stage 2"
    )


def planning_pays(found: Diagnosis) -> str | None:
    planned = found.planned
    if isinstance(planned, str) or not pays(planned):
        return None
    return (
        f"the planner after a small stage 2 beats the base by {100 * planned.gain.mean:.0f} points: use "
        "variants=[search,plan,spa_plan]"
    )


RULES: tuple[Callable[[Diagnosis], str | None], ...] = (
    few_actions,
    few_rows,
    no_reward,
    little_to_gain,
    hides,
    chance,
    coordinates,
    not_learned,
    shallow,
    planning_pays,
)
NOTHING = "nothing stands out: variants=[vanilla,spa] on two seeds or more tells whether the recipe helps"


def verdict(found: Diagnosis) -> list[str]:
    """What the rules say, in order; one line that says so where none applies."""
    return [text for rule in RULES if (text := rule(found))] or [NOTHING]
