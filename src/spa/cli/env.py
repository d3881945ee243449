"""``spa env``: listing, checking and playing worlds. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

env_app = typer.Typer(help="List, check and play worlds.", no_args_is_help=True)

Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings.", show_default=False)]
World = Annotated[
    str,
    typer.Argument(
        help="A world or config (spa env list), a Gymnasium id, module:Class, gym:NAME, textarena:NAME, ..."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The world's seed.")]


@env_app.command("list")
def env_list() -> None:
    """Worlds, configs, models, algorithms and variants by name."""
    from spa.config.load import ALIASES, names_of
    from spa.envs.registry import describe_envs

    print("worlds")
    rows = describe_envs()
    width = max(len(name) for name, _, _ in rows)
    for name, description, extra in rows:
        needs = f" (pip install 'spa-agent[{extra}]')" if extra else ""
        print(f"  {name:<{width}}  {description}{needs}")
    print("configs  " + ", ".join(names_of("env")))
    print("aliases  " + ", ".join(f"{alias} = {name}" for alias, name in ALIASES.items()))
    print("models   " + ", ".join(names_of("model")))
    print("algorithms  " + ", ".join(names_of("algorithm")))
    print("variants     " + ", ".join(names_of("variant")))


@env_app.command("check")
def env_check(
    name: World,
    settings: Settings = None,
    episodes: Annotated[
        int, typer.Option(min=1, help="Random episodes to play in search of hidden information.")
    ] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds that are compared.")] = 5,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds after which a call of the world counts as hanging.")
    ] = 30.0,
) -> None:
    """Check that a world keeps the contract; exit code 1 if it does not. Warnings do not count as failures."""
    from spa.common.limits import TimeLimit, limited
    from spa.envs import make_env
    from spa.envs.check import Finding, each_finding
    from spa.envs.seeded import one_line

    name, values = named_world(name, world_settings(settings))
    findings: Iterable[Finding]
    try:
        limited(lambda: make_env(name, **values), timeout)
    except (ValueError, OSError):  # an unknown name or a bad setting is the user's error, not a finding
        raise
    except TimeLimit:
        findings = [Finding("it can be made", f"the constructor did not return within {timeout:g} s")]
    except Exception as error:
        findings = [Finding("it can be made", one_line(error))]
    else:
        findings = each_finding(
            lambda: make_env(name, **values),
            seeds=seeds,
            episodes=episodes,
            name=name,
            settings=values,
            timeout=timeout,
        )
    asked = failed = warned = 0
    for finding in findings:
        print(finding.line(), flush=True)
        asked, failed, warned = asked + 1, failed + finding.failed, warned + (finding.warning and not finding.ok)
    print(
        f"{asked} question{'' if asked == 1 else 's'}: {failed} failed, {warned} {'warning' if warned == 1 else 'warnings'}."
    )
    if failed:
        raise typer.Exit(1)


@env_app.command("play")
def env_play(
    name: World,
    settings: Settings = None,
    seed: Seed = 0,
    lines: Annotated[bool, typer.Option("--lines", help="Type every move, even where arrow keys would do.")] = False,
) -> None:
    """Play a world in the terminal, with arrow keys where they fit."""
    from spa.envs import make_env
    from spa.envs.play import arrow_actions, play_world, terminal_keys

    name, values = named_world(name, world_settings(settings))
    env = make_env(name, **values)
    arrows = arrow_actions(env.actions)
    try:
        if arrows and not lines and sys.stdin.isatty():
            with terminal_keys(sys.stdin) as keys:
                play_world(env, seed, keys, sys.stdout, arrows)
        else:
            play_world(env, seed, iter(sys.stdin.readline, ""), sys.stdout)
    finally:
        env.close()


def named_world(name: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The world and settings of a config (``sokoban_easy``, ``vault.yaml``), the given settings over them; other names stay as
    they are."""
    from spa.config.load import env_block, names_of
    from spa.envs.registry import env_names

    if not name.endswith((".yaml", ".yml")) and (name in env_names() or name not in names_of("env")):
        return name, settings
    block = env_block(name)
    return block.id, {**block.settings, **settings}


def world_settings(settings: list[str] | None) -> dict[str, Any]:
    """``size=6``, or as in a config ``env.settings.size=6``, as a constructor's keyword arguments."""
    from spa.config.overrides import apply_overrides
    from spa.config.schema import EnvConfig

    for setting in settings or []:
        if "=" not in setting:
            raise ValueError(f"unexpected argument {setting!r}; settings are written key=value")
    given = [setting.removeprefix("env.settings.") for setting in settings or []]
    return apply_overrides(EnvConfig(), [f"settings.{setting}" for setting in given]).settings
