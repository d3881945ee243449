"""The command line: reads the config, calls ``spa.pipeline``, turns errors into one line. Imports no torch itself."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from spa import __version__
from spa.cli.arguments import check_new_folder, split_words
from spa.cli.compare import compare
from spa.cli.data import data_app
from spa.cli.diagnose import diagnose
from spa.cli.env import env_app
from spa.cli.export import export
from spa.cli.model import model_app
from spa.cli.perplexity import perplexity
from spa.cli.play import play
from spa.cli.reproduce import reproduce
from spa.cli.verify import verify
from spa.cli.view import view
from spa.common.errors import error_message
from spa.common.secrets import print_traceback, redact
from spa.common.signals import Interrupted, interruptible, terminated_as_interrupted
from spa.common.text import clean

if TYPE_CHECKING:
    from spa.config.schema import Config, VariantConfig
    from spa.runs.folder import RunFolder


app = typer.Typer(
    name="spa",
    help="Teach a language-model agent how a world works, then reward it for winning: self-play, SFT, PPO.",
    epilog="NAME is a config (sokoban, frozen_lake, sudoku, ...; spa env list shows all) or a YAML file; "
    "spa config NAME shows its settings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(env_app, name="env")
app.add_typer(data_app, name="data")
app.add_typer(model_app, name="model")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME KEY=VALUE",
        help="A config name or YAML file, and settings. Without a name the config saved in --out is used.",
        show_default=False,
    ),
]
Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings.", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="The run folder. Default: runs/NAME-TIME.", show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what --out holds.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and the plan; write nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant",
        help="A variant (spa env list) or a YAML file. Default: the first of variants; eval without a run: base.",
        show_default=False,
    ),
]
SourceVariant = Annotated[
    str | None,
    typer.Option(
        "--variant", help="Of this variant, where it changes stages 1 or 2. Default: the run's.", show_default=False
    ),
]


def is_rank() -> bool:
    """Whether torchrun started this process, and reports its failure."""
    return "TORCHELASTIC_RUN_ID" in os.environ


_words_given: list[str] = []  # of the command, to start it again in several ranks


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, 1 (a check failed), 2 (bad input, one line on stderr), 130 (Ctrl-C),
    141 (nobody reads the output), 143 (SIGTERM).

    ``SPA_DEBUG=1`` shows the traceback of an error.
    """
    with terminated_as_interrupted():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    for closed in [name for name in ("stdout", "stderr") if getattr(sys, name) is None]:  # by a daemon, say
        setattr(sys, closed, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Sokoban's root sign ends no command
    try:
        _words_given[:] = sys.argv[1:] if argv is None else argv
        words = list(_words_given)
        if any(not word or (word.startswith("--") and word.endswith("=")) for word in words):
            raise ValueError("an argument is empty: a shell variable that is not set?")
        if sum(word.partition("=")[0] == "--variant" for word in words) > 1:
            raise ValueError("--variant is given twice: a command takes one; `spa run` trains all of variants=[...]")
        code = _call(words)
        sys.stdout.flush()
    except Interrupted as error:
        return _fail("" if is_rank() else str(error), error.code)
    except KeyboardInterrupt as error:
        stopped = Interrupted("", error)
        return _fail(str(stopped), stopped.code)
    except SystemExit as error:  # ours returns codes
        return _fail(f"Error: a world or library asked to end the program (SystemExit: {error})", 2)
    except BrokenPipeError:
        return _unread()
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's usage errors; called without arguments, the message is the help
            bare = type(error).__name__ == "NoArgsIsHelpError"
            hint = _setting_hint(getattr(error, "option_name", ""))
            return _fail(error.format_message() if bare else f"Error: {error.format_message()}{hint}", 2)
        if is_rank():
            importlib.import_module("spa.scale.launch").record(error)
            return 2 if _is_users(error) else 1
        if not _is_users(error):
            sys.excepthook = print_traceback if argv is None else sys.excepthook
            raise
        if os.environ.get("SPA_DEBUG", "0") not in ("", "0"):
            print_traceback(type(error), error, error.__traceback__)
        return _fail(f"Error: {error_message(error)}", 2)
    return code if isinstance(code, int) else 0


def _call(words: list[str]) -> Any:
    """What a command returns. Not by typer's own ``main``, which takes a Ctrl-C in its own lines and says nothing."""
    command = get_command(app)
    try:
        try:
            if "_SPA_COMPLETE" in os.environ:
                command(prog_name="spa")
            context = command.make_context("spa", words)
        except SystemExit as end:  # a shell has its completions
            return end.code
        with context:
            return command.invoke(context)
    except typer.Exit as end:
        return end.exit_code


def _is_users(error: Exception) -> bool:
    """Whether an error is about the input (bad values, missing files or models) and not a defect of the program."""
    return isinstance(error, (ValueError, OSError)) or type(error).__module__.startswith("gymnasium.error")


def _setting_hint(option: str) -> str:
    """What to write instead of an unknown option that is the last word of settings: ``--steps`` -> ``ppo.steps=...``."""
    from spa.config.overrides import setting_names
    from spa.config.schema import Config

    word = option.lstrip("-").replace("-", "_")
    names = [name for name in setting_names(Config) if word in (name, name.rpartition(".")[2])]
    return f". Settings are written key=value: {' or '.join(f'{name}=...' for name in names[:4])}" if names else ""


def _unread() -> int:
    """Ends a command whose output nobody reads any more (``spa verify RUN | head``): it was not finished, so not 0."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + 13  # SIGPIPE, as of other programs


def _fail(message: str, code: int) -> int:
    if message:
        print(clean(redact(message)), file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"spa {__version__}")
        raise typer.Exit


@app.command()
def run(
    words: Words = None, out: Out = None, resume: Resume = False, dry_run: DryRun = False, quiet: Quiet = False
) -> None:
    """All stages for all variants: self-play, SFT, PPO, evaluation, report."""
    options = _Options(words, out, resume, dry_run, quiet)
    _stage("run", options, lambda p, cfg, variant, folder: p.run(cfg, folder, resume=resume))


@app.command()
def generate(
    words: Words = None,
    variant: SourceVariant = None,
    out: Out = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Stage 1: self-play data, with the world's true states."""
    options = _Options(words, out, resume, dry_run, quiet, variant)
    _stage("generate", options, lambda p, cfg, chosen, folder: p.generate(cfg, folder, variant=chosen, resume=resume))


@app.command()
def sft(
    words: Words = None,
    variant: SourceVariant = None,
    out: Out = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Stage 2: fine-tune on the self-play data of --out (or sft.data)."""
    options = _Options(words, out, resume, dry_run, quiet, variant)
    _stage("sft", options, lambda p, cfg, chosen, folder: p.sft(cfg, folder, variant=chosen, resume=resume))


@app.command()
def practice(
    words: Words = None,
    variant: Annotated[str, typer.Option("--variant", help="A variant that practises, or a YAML file.")] = "spa_plan",
    out: Out = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Between stages 2 and 3: plan in the model's own predictions, teach the plans (beyond the paper)."""
    options = _Options(words, out, resume, dry_run, quiet, variant)
    _stage("practice", options, lambda p, cfg, chosen, folder: p.practice(cfg, chosen, folder, resume=resume))


@app.command()
def ppo(
    words: Words = None,
    variant: Variant = None,
    out: Out = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Stage 3: reinforcement learning of one variant."""
    options = _Options(words, out, resume, dry_run, quiet, variant)
    _stage("ppo", options, lambda p, cfg, chosen, folder: p.ppo(cfg, chosen, folder, resume=resume))


@app.command("eval")
def evaluate(
    words: Words = None,
    variant: Variant = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="A checkpoint, a stage's folder or a hub name. Default: the variant's in --out.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Pass@1, Pass@k and world-model accuracy of one variant on held-out worlds; without a run in --out, of the model as it is."""
    from spa.cli.play import exported
    from spa.runs.stage import model_of

    given = words
    words, model = exported(given, model, "eval")
    if words is not given:  # an exported folder is measured as it is, also into a run's folder
        variant = variant or "base"
    with contextlib.suppress(ValueError):  # what is no stage's folder is looked at with everything else
        model = model_of(model) if model else None
    if model and split_words(words)[0] is not None:  # else the run's config counts
        words = [*(words or []), f"model.path={model}"]
    options = _Options(words, out, resume, dry_run, quiet, variant, model)
    _stage("eval", options, lambda p, cfg, chosen, folder: p.evaluate(cfg, chosen, folder, model=model, resume=resume))


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN_DIR")],
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes", min=0, help="Episodes shown per variant. Default: report.episodes.", show_default=False
        ),
    ] = None,
) -> None:
    """Write report.html of a run and print its path."""
    if not run_dir.is_dir():
        raise ValueError(f"no run folder {run_dir}")
    print(f"Report: {importlib.import_module('spa.pipeline').report(run_dir, episodes)}")


app.command()(compare)
app.command()(play)
app.command()(view)
app.command()(perplexity)
app.command()(diagnose)
app.command()(export)
app.command()(verify)
app.command()(reproduce)


@app.command()
def pretrain(
    out: Annotated[Path, typer.Option("--out", help="The model folder to make.")],
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Pretrain the tiny model from scratch."""
    from spa.common.progress import set_quiet
    from spa.config.overrides import apply_overrides
    from spa.pretrain.train import PretrainConfig
    from spa.pretrain.train import pretrain as make

    set_quiet(quiet)
    config = apply_overrides(PretrainConfig(), settings or [])
    check_new_folder(out)
    out.mkdir(parents=True, exist_ok=True)  # where that is not allowed, it fails now
    make(config, out)
    print(out)


@app.command()
def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME KEY=VALUE",
            help="A config name or YAML file (default: sokoban), and settings.",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="With the settings of this variant.", show_default=False)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--explain", metavar="KEY", help="What a setting does, where its value comes from, who reads it."),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--markdown", help="All settings as the tables of the documentation.")
    ] = False,
) -> None:
    """Print the resolved config, a YAML file that can be given as NAME."""
    from spa.config.explain import explain, markdown
    from spa.config.load import load_config, load_variant, to_yaml
    from spa.config.variants import played_config

    name, settings = _words(words)
    if tables:
        print(markdown(), end="")
    elif key:
        print(redact(explain(key, name, settings, variant)))
    else:
        cfg = load_config(name, settings)
        print(to_yaml(played_config(cfg, load_variant(variant)) if variant else cfg), end="")


@dataclass(frozen=True)
class _Options:
    """What a stage command was given."""

    words: list[str] | None
    out: Path | None
    resume: bool
    dry_run: bool
    quiet: bool
    variant: str | None = None
    model: str | None = None


def _stage(command: str, options: _Options, work: Callable[[Any, Config, VariantConfig | None, Path], None]) -> None:
    """What the stage commands share: config, folder, dry run, Ctrl-C. ``work`` gets pipeline, config, variant, folder."""
    from spa.common.progress import note, set_quiet
    from spa.scale import ranks

    other_rank = ranks.under_torchrun() and os.environ["RANK"] != "0"
    set_quiet(options.quiet or other_rank)  # the main rank speaks
    if options.dry_run and other_rank:
        return
    begun = f"spa {__version__} {command}"
    at_once = sys.stderr.isatty() and not options.dry_run and not is_rank()
    if at_once:  # reading the config takes a second
        note(begun)
    from spa.config.load import preset_of, to_yaml
    from spa.config.variants import overruled, variant_named, variants_of
    from spa.dry_run import imports
    from spa.engines.base import server
    from spa.preflight import check_out
    from spa.runs.folder import RunFolder, default_folder
    from spa.scale import launch

    cfg = _config(options)
    name, settings = _words(options.words)
    preset = preset_of(name, settings) if name is not None else None
    folder = options.out or default_folder(cfg)
    trained = command == "ppo" or (command == "eval" and RunFolder(folder).more_than_evaluated)
    chosen = options.variant or (cfg.variants[0] if trained else "base" if command == "eval" else None)
    variant = variant_named(cfg, chosen) if chosen else None
    if variant and command == "eval" and chosen == "base":  # a model as it is, or the base of a `spa run`
        variant = RunFolder(folder).recorded("base") or replace(variant, state_format=cfg.env.state_format)
    said = is_rank() and cfg.launcher != "local"  # by the command that started the ranks
    if not options.dry_run and not said:  # before anything heavy is imported
        named = [f"variant {chosen}"] if chosen else [f"variants {', '.join(cfg.variants)}"] if command == "run" else []
        world = [f"world {cfg.env.id}"] if cfg.env.id != cfg.name else []
        model = cfg.model.path if cfg.engine.kind != "openai" else server(cfg.engine)
        note(("" if at_once else f"{begun}: ") + ", ".join([cfg.name, *world, f"model {model}", *named]))
        if options.out is None:
            note(f"Run folder: {folder}")
        if preset:
            note(f"Preset: {preset}")
    again = [
        command,
        *(["--variant", chosen] if chosen else []),
        *(["--model", options.model] if options.model else []),
    ]
    again += ["--out", str(folder), "--resume"]
    run = RunFolder(folder)
    record = run.info()
    with interruptible(lambda: _how_to_resume(again, run, record)):
        pipeline = importlib.import_module("spa.pipeline")
        variants = [variant] if variant else variants_of(cfg) if command == "run" else []
        unused = [*launch.unused(cfg, settings), *overruled(cfg, settings, variants)]
        for line in unused if not options.dry_run and not said else ():
            note(line)
        if options.dry_run:
            print(to_yaml(cfg), end="")
            for line in imports(cfg, variants):
                print(f"# {redact(line)}", flush=True)  # said before it is done
            if options.out is not None:
                check_out(cfg, folder, command, options.resume, variants)
            asks = [f"asks: {server(cfg.engine)}"] if cfg.engine.kind == "openai" else []
            heading = [f"run folder: {folder}", *asks, *([f"preset: {preset}"] if preset else []), *unused]
            for line in [*heading, *pipeline.plan(cfg, command, variants, options.model, folder)]:
                print(f"# {redact(line)}".rstrip())
        elif launch.needed(cfg):
            launch.check(cfg, variants)
            check_out(cfg, folder, command, options.resume, variants)
            try:
                launch.start(cfg, [*_words_given, "--out", str(folder)], folder, [*again, *["--quiet"] * options.quiet])
            except ValueError as error:
                if run.info() != record:  # the ranks began; the main one may know only that another ended
                    run.close(error)
                raise
        else:
            with ranks.joined(cfg.scale, cfg.model.device):
                folder = ranks.gather(folder)[0]  # its name has the time
                work(pipeline, cfg, variant, folder)


def _how_to_resume(again: Sequence[str], run: RunFolder, before: dict[str, Any]) -> str:
    """``before``: the record of the run folder when the command began; a command that saves its settings adds an entry."""
    if run.info() == before:
        return "Nothing was written: give the same command again"
    return f"Continue with: spa {shlex.join(again)}"


def _config(options: _Options) -> Config:
    """The config of a stage command: NAME's, else the one saved in ``--out``."""
    from spa.config.load import load_config, names_of

    out = options.out
    if options.resume and out is None:
        raise ValueError("--resume needs --out, the run folder to continue")
    name, settings = _words(options.words)
    if name is not None:
        return load_config(name, settings)
    if out is not None and (out / "config.yaml").is_file():
        return load_config(out / "config.yaml", settings)
    where = f"{out} holds no run (no config.yaml)" if out is not None else "no config given"
    raise ValueError(f"{where}; give a NAME: {', '.join(names_of('env'))} or a YAML file")


def _words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """As ``split_words``; what is no setting is refused before anything is loaded."""
    name, settings = split_words(words)
    for word in settings:
        if "=" not in word:
            raise ValueError(f"unexpected argument {word!r}; settings are written key=value")
    return name, settings


if __name__ == "__main__":
    sys.exit(main())
