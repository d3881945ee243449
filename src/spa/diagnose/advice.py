"""The results of ``spa diagnose`` and the advice derived from them by simple rules. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from spa.common.progress import duration
from spa.envs.check_markov import Outcomes
from spa.evaluate.bootstrap import Interval, percent

# Rules of thumb, chosen to separate clear cases, not fitted to training runs.
FEW = 0.2  # share of turns or rows below which a stage has too little to learn from
HIGH = 0.8  # Pass@1 of the base above which little can be gained
LOWER = 0.75  # ratio of perplexity with coordinates to without: below, they lower it clearly
FAR = 2.0  # ratio of perplexity to that of guessing: above, states are unfamiliar to the model
GAIN = 0.05  # in Pass@1: five points
MIN_TOP1 = 0.5  # share of states in which the truth beats its corruptions
EXACT = 0.5  # share of exact imagined states: plans may be as deep as this is reached
NOTHING = "nothing stands out: 'variants=[vanilla,spa]' on two seeds or more tells whether the recipe helps"


@dataclass(frozen=True)
class Base:
    """The untrained model on validation worlds.

    ``format_rate`` and ``valid_turns`` are shares of turns: well-formed ones, and those with an action that the world accepted.
    ``random`` is the Pass@1 of uniformly random actions; None if the world has none. ``failed`` is the share of episodes in which
    the world failed: lost, and not counted in the shares of turns. ``over_random`` is the Pass@1 minus that of random actions,
    paired by world. ``limited`` is the share of episodes, random ones included, that ``env.max_turns`` or ``env.max_actions``
    ended, ``scores_differ`` whether episodes of one world got different rewards.
    """

    format_rate: float
    valid_turns: float
    pass_1: Interval
    random: float | None
    failed: float = 0.0
    over_random: Interval | None = None
    limited: float = 0.0
    scores_differ: bool = False


@dataclass(frozen=True)
class States:
    """Perplexity per token of states, None for a state format that the world lacks; and that of guessing each cell or, if the world
    lists no symbols (``cells``), each token."""

    raw: float | None
    coordinates: float | None
    guess: float
    cells: bool = True


@dataclass(frozen=True)
class Learned:
    """The model after a small stage 2 on transitions.

    Attributes:
        policy: who played to collect them: model or random.
        rows, steps: of the training.
        prediction: share of the ``turns`` predictions on validation worlds that are exact; None if it wrote none.
        top1, chance: share of states in which the truth is likelier than its corruptions, and the score of guessing.
        imagined: share of exact states by number of actions ahead; empty if the world has no random actions.
        ended_auc: AUC of the model's probability of the end, at the first depth where some but not all walks ended.
    """

    policy: str
    rows: int
    steps: int
    prediction: float | None = None
    turns: int = 0
    top1: float | None = None
    chance: float | None = None
    imagined: dict[int, float] = field(default_factory=dict)
    ended_auc: float | None = None


@dataclass(frozen=True)
class Planned:
    """A planner using that model's predictions, on the base's worlds; ``gain`` is its Pass@1 minus the base's, ``over_random``
    minus that of random actions, both paired by world, ``wins_true`` the share that won of the ``wins_expected`` moves that it
    played to win (None: there was none)."""

    kind: str
    pass_1: Interval
    gain: Interval
    questions: float  # to the model, per episode
    wins_expected: int = 0
    wins_true: float | None = None
    over_random: Interval | None = None


@dataclass(frozen=True)
class VariantTime:
    """A variant's measurements and the estimated time of its stages, in seconds. None: not measured; 0: no such stage.

    ``rows_per_turn`` is the number of rows per turn of stage 1 (with transitions, a turn can give more than one).
    """

    variant: str
    episode: float | None
    rows_per_turn: float | None
    sft_step: float | None
    ppo_step: float | None
    stage_1: float | None
    stage_2: float | None
    stage_3: float | None


@dataclass(frozen=True)
class Diagnosis:
    """The full result. A text replaces each part that could not be measured and says why.

    ``hidden.kind`` is ``unknown`` in a world without random moves.
    """

    name: str
    model: str
    worlds: int
    base: Base
    states: States
    hidden: Outcomes
    learned: Learned | str
    planned: Planned | str
    times: list[VariantTime]
    total: float | None  # seconds of all stages of all variants; shared stages count once
    seconds: float = 0.0  # duration of the diagnosis
    selfplay: str = "model"  # who plays in stage 1


def lines(diagnosis: Diagnosis) -> list[str]:
    """The full output: for each part the figures and, below them, what they suggest; then the verdict."""
    parts = {
        "base": base_part(diagnosis.base),
        "states": states_part(diagnosis.states),
        "hidden": hidden_part(diagnosis.hidden),
        "world model": world_model_part(diagnosis.learned),
        "planner": planner_part(diagnosis),
        "time": time_part(diagnosis),
    }
    out = [f"{diagnosis.name}, {diagnosis.model}, {diagnosis.worlds} validation worlds, {duration(diagnosis.seconds)}"]
    for title, (figures, suggestion) in parts.items():
        first, *more = figures.splitlines()
        out += [f"{title:<13}{first}", *(f"{'':13}{line}" for line in more), f"{'':13}-> {suggestion}"]
    out += ["verdict (rules of thumb; no promise of what training reaches)"]
    return out + [f"  - {text}" for text in verdict(diagnosis)]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def base_part(base: Base) -> tuple[str, str]:
    """Figures and suggestion: the untrained model beside random moves."""
    chance = "none to compare" if base.random is None else f"{100 * base.random:.1f}"
    figures = (
        f"in the format {_share(base.format_rate)}, turns with a valid action {_share(base.valid_turns)}, "
        f"Pass@1 {percent(base.pass_1)}, random policy {chance}"
    )
    if base.failed:
        figures += f"; the world failed in {_share(base.failed)} of the episodes"
    if base.valid_turns < FEW:
        more = "" if base.random is None else ", or random self-play"
        return figures, f"it hardly plays: more sampling.max_tokens, a larger model{more}"
    if base.over_random is None:
        return figures, "nothing to compare it with: the world has no random actions"
    if base.over_random.low > 0:
        return figures, "it plays better than chance"
    if base.over_random.high < 0:
        return figures, "it plays worse than chance"
    return figures, "no better than chance, as far as these worlds tell"


def states_part(states: States) -> tuple[str, str]:
    """Figures and suggestion: how familiar states are to the model."""
    shown = {"raw": states.raw, "with coordinates": states.coordinates}
    values = {title: value for title, value in shown.items() if value is not None}
    if not values:
        return "not measured: no state has a token to score", "states this short are familiar to any model"
    figures = ", ".join(f"{title} {value:.1f}" for title, value in values.items())
    figures = f"perplexity {figures}, random guess {states.guess:.1f}"
    if coordinates_help(states):
        return (
            figures,
            "coordinates lower it clearly: variants that show them (se, spa); longer texts repeat themselves, so try both",
        )
    if min(values.values()) > states.guess * (FAR if states.cells else 1):
        suggestion = "the states look unfamiliar to this model: what stage 2 is for"
    elif states.cells:
        suggestion = "not far from a guess: the states look familiar to this model"
    else:
        suggestion = (
            "better than guessing each token, which says little; a world of cells that lists its `symbols` tells more"
        )
    if states.raw is not None and states.coordinates is not None:
        worse = states.coordinates > states.raw / LOWER
        suggestion += "; coordinates raise it" if worse else "; coordinates change little"
    return figures, suggestion


def coordinates_help(states: States) -> bool:
    """Whether coordinates lower the perplexity clearly; False where the world has only one of the two formats."""
    return states.raw is not None and states.coordinates is not None and states.coordinates < LOWER * states.raw


def hidden_part(hidden: Outcomes) -> tuple[str, str]:
    """Figures and suggestion: whether equal states and actions have equal outcomes."""
    suggestions = {
        "certain": "nothing hidden was found: predictions can be exact",
        "chance": "chance decides: no prediction can always be right; planner.samples=4 or so asks for several outcomes",
        "hidden": "the state does not say enough: it can be neither predicted nor planned in exactly",
        "unclear": "chance, or the state does not say enough: no prediction can always be right",
        "unknown": "see for yourself whether equal states and actions have equal outcomes",
    }
    figures = f"one outcome each: {hidden.text}" if hidden.kind == "certain" else hidden.text
    return figures, suggestions[hidden.kind]


def world_model_part(learned: Learned | str) -> tuple[str, str]:
    """Figures and suggestion: the predictions after a small stage 2."""
    if isinstance(learned, str):
        return f"not measured: {learned}", "nothing can be said of a world model"
    walks = ", ".join(f"{_share(learned.imagined[depth])} at depth {depth}" for depth in shown_depths(learned.imagined))
    auc = "-" if learned.ended_auc is None else f"{learned.ended_auc:.2f}"
    figures = (
        f"{learned.rows} transitions ({learned.policy} policy), {learned.steps} steps: predictions exact "
        f"{_share(learned.prediction)} of {learned.turns}, truth beats its corruptions {_share(learned.top1)} (chance "
        f"{_share(learned.chance)})\nimagined states exact {walks or '-'}; AUC of the end {auc}"
    )
    if learned.top1 is None and not learned.imagined:
        return figures, "it wrote no prediction to judge"
    if learned.top1 is not None and learned.top1 < MIN_TOP1:
        return figures, "it does not know this world yet"
    if not learned.imagined:
        return figures, "it tells true states from false ones"
    if depth := plan_depth(learned):
        return figures, f"half of the states it imagines are exact up to depth {depth}"
    if learned.top1 is None:
        return figures, "nothing shows that it knows this world"
    return figures, "it knows some of this world, but cannot imagine one move"


def shown_depths(imagined: dict[int, float]) -> list[int]:
    """The first depth, the third and the last."""
    return sorted({1, 3, max(imagined)} & set(imagined)) if imagined else []


def plan_depth(learned: Learned) -> int:
    """How many actions ahead at least half of the imagined states are exact."""
    exact = takewhile(lambda item: item[1] >= EXACT, sorted(learned.imagined.items()))
    return max((depth for depth, _ in exact), default=0)


def planner_part(diagnosis: Diagnosis) -> tuple[str, str]:
    """Figures and suggestion: what a planner over these predictions wins."""
    planned, base = diagnosis.planned, diagnosis.base
    if isinstance(planned, str):
        return f"not measured: {planned}", "the paper's recipe needs no planner"
    chance = "" if base.random is None else f", random {100 * base.random:.1f}"
    figures = (
        f"{planned.kind} Pass@1 {percent(planned.pass_1)}; base {100 * base.pass_1.mean:.1f}{chance}; gain over the base "
        f"{percent(planned.gain, sign=True)}; {planned.questions:.0f} questions an episode"
        + (
            f"\n{_share(planned.wins_true)} of the {planned.wins_expected} wins that it expected came true"
            if planned.wins_expected
            else ""
        )
    )
    if pays(diagnosis):
        return figures, "imagination is good enough to act on"
    if planned.gain.high < 0:
        return figures, "acting on it is worse than the base"
    if planned.gain.low > 0:
        return figures, "better than the base, but no clear gain over chance"
    return figures, "no clear gain, as far as these worlds tell"


def pays(diagnosis: Diagnosis) -> bool:
    """Whether there is a planner that is significantly better than the base, by at least ``GAIN``, and than random moves."""
    planned = diagnosis.planned
    if isinstance(planned, str) or planned.gain.mean < GAIN or planned.gain.low <= 0:
        return False
    return planned.over_random is None or planned.over_random.low > 0


def time_part(diagnosis: Diagnosis) -> tuple[str, str]:
    """Figures and suggestion: the time of the variants."""
    rows = []
    for time in diagnosis.times:
        steps = {"an episode of stage 1": time.episode, "a step of stage 2": time.sft_step, "a PPO step": time.ppo_step}
        stages = {"stage 1": time.stage_1, "stage 2": time.stage_2, "stage 3": time.stage_3}
        per_step = ", ".join(
            f"{name} {'not measured' if value is None else f'{value:.2f} s'}"
            for name, value in steps.items()
            if value != 0
        )
        totals = ", ".join(f"{name} {_duration(value)}" for name, value in stages.items() if value != 0)
        rows.append(f"{time.variant}: {totals or 'nothing to train'}" + (f" ({per_step})" if per_step else ""))
    suggestion = (
        f"{_duration(diagnosis.total)} in all, what variants share counted once; at this moment's load, without validation, "
        "evaluation and practice; training makes answers longer or shorter"
    )
    return "\n".join(rows) or "no variants", suggestion


def _duration(value: float | None) -> str:
    return "not measured" if value is None else duration(value)


def verdict(diagnosis: Diagnosis) -> list[str]:
    """The advice of the rules, in order; one line that says so if none applies."""
    return [*_base_rules(diagnosis), *_model_rules(diagnosis)] or [NOTHING]


def _base_rules(diagnosis: Diagnosis) -> Iterator[str]:
    """Advice based on the world and the untrained model."""
    base, hidden = diagnosis.base, diagnosis.hidden
    random_helps = base.random is not None and diagnosis.selfplay != "random"
    if base.failed:
        yield f"the world failed in {_share(base.failed)} of the episodes: `spa env check` says why"
    if base.valid_turns < FEW:
        yield (
            f"only {_share(base.valid_turns)} of the turns have a valid action: RL will see little reward; a larger model, more "
            "sampling.max_tokens"
            + (
                ", or self-play with selfplay.policy=random and stage 2 first"
                if random_helps
                else ", and (unless set) agent.prompt_after_sft=world_model where the model does not know these actions"
            )
        )
    if poor := [time for time in diagnosis.times if time.rows_per_turn is not None and time.rows_per_turn < FEW]:
        yield (
            f"stage 1 of {', '.join(time.variant for time in poor)} will keep few rows ({_share(poor[0].rows_per_turn)} of the "
            f"turns): a larger model, {'selfplay.policy=random, ' if random_helps else ''}or selfplay.rows=transitions "
            "with selfplay.prompt=base and selfplay.filter=false, which needs valid actions alone"
        )
    if base.pass_1.mean <= 0 and (base.random or 0) <= 0:
        if base.limited == 1:
            yield "env.max_turns or env.max_actions ended every episode: raise them where a world takes longer to win"
        if base.scores_differ:
            yield "rewards differ, but no episode is a success (info['success']), of which tables, curves and this page tell"
        else:
            yield "neither the base nor chance ever won: RL has nothing to reinforce; an easier world first, or curriculum.levels"
    if (base.random or 0) >= HIGH:
        yield f"random actions already win {100 * (base.random or 0):.1f} percent: this world cannot show what is learned"
    if base.pass_1.mean >= HIGH:
        yield f"the base already wins {percent(base.pass_1)} percent: little to gain; try a harder world"
    if hidden.kind == "hidden":
        yield (
            "the world hides something that counts: neither planning nor predictions can be exact; plain RL with history "
            "(agent.window=0), or a world whose state says more"
        )
    if hidden.kind == "chance":
        yield "chance decides: plan with planner.samples above 1, and expect no exact predictions"
    if hidden.kind == "unclear":
        yield (
            "chance decides or the state does not say enough: plan with planner.samples above 1, and expect no exact predictions"
        )
    if coordinates_help(diagnosis.states):
        yield "coordinates lower the states' perplexity clearly: 'variants=[vanilla,se,spa]' tells whether they alone help"


def _model_rules(diagnosis: Diagnosis) -> Iterator[str]:
    """Advice based on the small stage 2 and its planner."""
    learned, planned, planner_pays = diagnosis.learned, diagnosis.planned, pays(diagnosis)
    if isinstance(learned, Learned):
        depth, max_depth = plan_depth(learned), max(learned.imagined, default=0)
        if learned.top1 is not None and learned.top1 < MIN_TOP1:
            yield (
                f"the truth beats its corruptions in only {_share(learned.top1)} of the states (chance {_share(learned.chance)}): "
                "more self-play, more epochs or a larger model first (here: --groups, --steps)"
            )
        elif learned.top1 is None and not depth:
            yield "stage 2 wrote no prediction that is right: more self-play, more epochs or a larger model (--groups, --steps)"
        elif max_depth and not depth and not planner_pays:
            yield "fewer than half of the states are exact after one imagined action: a longer stage 2 (--groups, --steps) first"
        if 0 < depth < max_depth and not planner_pays:  # a planner replans after each move and needs less depth
            yield (
                f"beyond {depth} of {max_depth} imagined actions fewer than half of the states are exact: planner.depth={depth}, "
                "or a longer stage 2"
            )
    if isinstance(planned, Planned) and planner_pays:
        yield (
            f"the planner after a small stage 2 beats the base by {100 * planned.gain.mean:.0f} points: use "
            "'variants=[search,plan,spa_plan]'"
        )
