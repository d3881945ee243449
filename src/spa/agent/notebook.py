"""An episode as HTML for notebooks: what a model wrote is escaped."""

from __future__ import annotations

from html import escape

from spa.agent.episode import Episode

_COLUMNS = ("turn", "state", "response", "played", "next state", "reward")


def episode_html(episode: Episode) -> str:
    """A table with a row per turn under the episode's one-line description."""
    rows = [
        (turn.index + 1, turn.state, turn.response, ", ".join(turn.executed), turn.next_state, f"{turn.reward:g}")
        for turn in episode.turns
    ]
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return f"<p>{escape(repr(episode))}</p><table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    return f'<td style="text-align: left; vertical-align: top"><pre>{escape(str(value))}</pre></td>'
