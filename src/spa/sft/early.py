"""Says early, and again at its end, whether stage 1 gives data; stops it where it does not."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from spa.agent.episode import Episode, Turn
from spa.common.progress import duration, note, sampled_tokens
from spa.config.schema import Config, SelfPlayConfig
from spa.data.ground_truth import rejection

WIDTH = 96  # episodes whose first turns are judged: enough to stop at the default selfplay.min_kept if none is kept
# At each look, that a model with a share of exactly selfplay.min_kept is stopped; over all looks up to 3%.
CHANCE = 0.01


def why_dropped(turn: Turn, play: SelfPlayConfig) -> str | None:
    """Why a turn gives no row, success, duplicates and balance aside; None if it does."""
    if play.rows == "transitions":
        return None if turn.executed else "no valid action"
    return rejection(turn.response) if play.filter else None


def hopeless(kept: int, turns: int, least: float) -> bool:
    """Whether so few kept turns have a probability of at most 1% under a share of ``least`` (binomial, one-sided)."""
    from scipy.special import bdtr

    return kept < least * turns and bool(bdtr(kept, turns, least) <= CHANCE)


class EarlyReport:
    """Called after every turn of stage 1; prints one report, and raises ValueError where too few turns are kept.

    The responses that finish first are the shortest, which often are the broken ones. So episodes are judged in order of their
    numbers, as far as all of them have got: until the report the first ``selfplay.early_turns``, then the first ``WIDTH``, or as
    many as are played at once; then as many more.

    Args:
        episodes: number of episodes of the stage.
        concurrent: number of episodes played at once.
    """

    def __init__(self, cfg: Config, episodes: int, concurrent: int) -> None:
        self.cfg, self.total, self.concurrent = cfg, episodes, concurrent
        self.width = min(WIDTH, concurrent, episodes)
        # Episodes first..last are judged as far as all of them have got, earlier ones whole.
        self.first, self.last = 0, min(cfg.selfplay.early_turns or self.width, self.width)
        self.seen: dict[int, tuple[Episode, int, bool]] = {}  # number -> episode, answered turns, ended
        self.started, self.tokens_before = time.monotonic(), sampled_tokens()
        self.judged = 0
        self.reported = self.done = not cfg.selfplay.early_turns

    def __call__(self, episode: Episode, ended: bool) -> None:
        if self.done:
            return
        play = self.cfg.selfplay
        self.seen[episode.group * play.group_size + episode.member] = episode, len(episode.turns), ended
        judged = self._judged()
        if len(judged) == self.judged:
            return
        self.judged = len(judged)
        if not self.reported and len(judged) >= play.early_turns:
            self.reported, self.last = True, max(self.last, self.width)
            note(f"self-play after {self._report(judged)}")
        kept = sum(why_dropped(turn, play) is None for _, turn in judged)
        if play.min_kept and hopeless(kept, len(judged), play.min_kept):
            raise too_few(self.cfg, [turn for _, turn in judged])
        # Later looks would only add chances of an error; the end of the stage is judged as a whole.
        enough = 3 * math.log(CHANCE) / math.log1p(-min(play.min_kept, 0.99)) if play.min_kept else 0
        self.done = self.reported and len(judged) > enough

    def _judged(self) -> list[tuple[Episode, Turn]]:
        # An episode that failed before its first turn may not be heard of until the end.
        begun = max(self.seen)

        def ended(number: int) -> bool:
            return self.seen[number][2] if number in self.seen else begun >= number + 2 * self.concurrent

        while self.first < self.last and all(map(ended, range(self.first, self.last))):
            self.first, self.last = self.last, min(self.total, self.last + self.width)
        going = [number for number in range(self.first, self.last) if not ended(number)]
        reached = min((self.seen[n][1] if n in self.seen else 0 for n in going), default=0)
        judged = [(self.seen[n][0], reached if n >= self.first else None) for n in range(self.last) if n in self.seen]
        return [(episode, turn) for episode, turns in judged for turn in episode.turns[:turns]]

    def _report(self, judged: Sequence[tuple[Episode, Turn]]) -> str:
        seconds = max(1e-3, time.monotonic() - self.started)
        turns = [turn for _, turn in judged]
        lengths = [tokens for episode, turn in judged if (tokens := sampled(episode, turn.index))]
        answered = sum(count for _, count, _ in self.seen.values())
        per_second, speed = answered / seconds, ""
        if lengths:
            mean = sum(lengths) / len(lengths)
            # Counted in this process, with what is not finished; forks' tokens are known when their episodes are.
            known = sum(sampled(episode, i) for episode, count, _ in self.seen.values() for i in range(count))
            rate = max(known, sampled_tokens() - self.tokens_before) / seconds
            per_second, speed = rate / mean, f", {mean:.0f} tokens a turn, {rate:.0f} tokens/s"
        left = self.total * self.cfg.env.max_turns / per_second
        return f"{rates(turns, self.cfg)}{speed}; the stage takes up to {duration(left)}"


def sampled(episode: Episode, index: int) -> int:
    """Tokens sampled in a turn; 0 if the episode has no token sequences (a chat server's)."""
    return sum(sum(m for m, turn in zip(s.mask, s.turns, strict=True) if turn == index) for s in episode.sequences)


def rates(turns: Sequence[Turn], cfg: Config) -> str:
    """``"96 turns: 50.0% kept, ..."``."""
    shares = {
        "kept": sum(why_dropped(turn, cfg.selfplay) is None for turn in turns),
        "in the format": sum(turn.format_ok for turn in turns),
        "with a valid action": sum(turn.valid for turn in turns),
        "cut off": sum(turn.finish_reason == "length" for turn in turns),
    }
    return f"{len(turns)} turns: " + ", ".join(f"{n / max(1, len(turns)):.1%} {name}" for name, n in shares.items())


def summary(cfg: Config, episodes: Sequence[Episode], dropped: Counter[str] | dict[str, int], rows: int) -> str:
    """What stage 1 gave: shares, rows and why others were dropped, and how many distinct states were visited."""
    turns = [turn for episode in episodes for turn in episode.turns]
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "none"
    return (
        f"self-play, {rates(turns, cfg)}; {rows} rows, dropped: {reasons}; {distinct_states(episodes)} distinct states"
    )


def distinct_states(episodes: Sequence[Episode]) -> int:
    """Coverage: different true states that were visited."""
    return len({state for episode in episodes for state in episode.states})


def too_few(cfg: Config, turns: Sequence[Turn]) -> ValueError:
    """The error that stops stage 1; prints three of the rejected responses first."""
    least = cfg.selfplay.min_kept
    return ValueError(
        f"self-play keeps too few turns (selfplay.min_kept={least}) of {rates(turns, cfg)}. {remedies(cfg, turns)}"
    )


def remedies(cfg: Config, turns: Sequence[Turn]) -> str:
    """What helps against rejected responses, in one line; prints three of them."""
    play = cfg.selfplay
    rejected = [(turn, why) for turn in turns if (why := why_dropped(turn, play))]
    for turn, why in rejected[:: max(1, len(rejected) // 3)][:3]:
        cut = ", cut off" if turn.finish_reason == "length" else ""
        note(f"  rejected ({why}{cut}): {visible(turn.response)}")
    if play.without_model:
        return "Random play writes well-formed answers: look at the world (spa env check) and at what selfplay.* drops"
    tried = {
        "constrained": play.constrained,
        "shots": play.shots,
        "tries": play.tries > 1,
        "warmup_rows": play.warmup_rows,
    }
    refused = {"openai": ("constrained", "warmup_rows"), "vllm": ("constrained",)}.get(cfg.engine.kind, ())
    ways = [
        *(f"selfplay.{name}" for name, there in tried.items() if not there and name not in refused),
        "selfplay.policy=random",
        "a larger model",
    ]
    if play.shots:
        ways.insert(0, "selfplay.shots=0")
    if sum(turn.finish_reason == "length" for turn in turns) > 0.2 * len(turns):
        ways.insert(0, f"more than sampling.max_tokens={cfg.sampling.max_tokens}")
    return f"What helps: {', '.join(ways)}"


def visible(text: str, head: int = 200, tail: int = 80) -> str:
    """A response on one line: control characters escaped, the middle of a long one left out."""
    if len(text) > head + tail:
        text = f"{text[:head]} [... {len(text) - head - tail} characters ...] {text[-tail:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
