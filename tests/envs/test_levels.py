"""Given instances: one by `reset(options=...)`, or a file of them by the setting `levels`."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.oracle import LEVELS

from spa.agent.task import Task
from spa.agent.worlds import WorldSource
from spa.config.schema import EnvConfig
from spa.envs import STATE_FORMATS, FrozenLake, Sokoban, Sudoku, make_env

# A level of XSB collections: ragged, indented, with floor outside of the walls and all seven things.
XSB = """
    #####
    #   #
  ###$  ##
###  .@  #
#  *  $. #
##########
"""
OURS = """##########
#####___##
#####X__##
###__OP__#
#__√__XO_#
##########"""
SHORT = "#####\n#@$.#\n#####"
BOARD_LINE = "| 1 2 3 . | 3 4 1 2 | 2 1 4 3 | 4 . 2 1 "
NINE = """53..7....
6..195...
.98....6.
8...6...3
4..8.3..1
7...2...6
.6....28.
...419..5
....8..79"""  # Wikipedia's
INSTANCES = {"sokoban": ("level", SHORT), "frozen_lake": ("map", "SFF\nHFG"), "sudoku": ("board", BOARD_LINE)}
# Three instances of several sizes each, in one file.
FILES = {
    "sokoban": f"; 0\n{SHORT}\n\n; 1\n{OURS}\n; 2 follows at once\n#######\n#+$   #\n#-$.-_#\n#######",
    "frozen_lake": "SFFF\nFHFH\nFFFH\nHFFG\n\n; long\nSFFFFFFFFFFFG\n\n; tall\nPO\n__\n_G\n\n\n",
    "sudoku": f"; lines\n1.3.341221434321\n{BOARD_LINE}\n\n; rows\n1 2|3 .\n. . |. .\n---+---\n2 1|4 3\n4 3|2 1\n",
}
COUNTS = {"sokoban": 3, "frozen_lake": 3, "sudoku": 3}


def file_of(name: str, folder: Path) -> Path:
    path = folder / f"{name}.txt"
    path.write_text(FILES[name], encoding="utf-8")
    return path


def test_xsb_and_our_symbols_are_one_level():
    env = Sokoban(state_format="coordinates")
    state, info = env.reset(options={"level": XSB})
    assert state.startswith(OURS + "\n")
    assert state.endswith(
        "Player (P) is at (3,6); boxes (X) are at (2,5), (4,3), (4,6); targets (O) are at (3,5), (4,3), (4,7)."
    )
    assert env.reset(options={"level": OURS}) == (state, info)
    assert env.reset(options={"level": "; 7\n" + OURS.replace("_", "-") + "\n"})[0] == state
    assert info["content"].startswith("Sokoban 6x10\n") and env.num_cell_values == 7
    # other symbols of the states change nothing in how levels are written
    other, _ = Sokoban(grid_vocab="W.GCBA@").reset(options={"level": XSB})
    assert other == state.rpartition("\n")[0].translate(str.maketrans("#_O√XPS", "W.GCBA@"))


def test_a_level_is_played_to_its_end():
    env = Sokoban()
    assert env.reset(options={"level": SHORT})[0] == "#####\n#PXO#\n#####"
    state, reward, terminated, truncated, info = env.step("Right")
    assert state == "#####\n#_P√#\n#####" and reward == pytest.approx(10.9)
    assert terminated and not truncated and info["success"]
    # A box that was at home from the start: taken off it, put back.
    env.reset(options={"level": "########\n#@*  $.#\n########"})
    assert env.step("Right")[1] == pytest.approx(-1.1)
    assert env.reset(seed=0)[0] == Sokoban().reset(seed=0)[0]  # and then rooms of the settings again
    assert len(env.render()) == 41


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("", "a level must be one instance, got 0"),
        (f"{SHORT}\n\n{SHORT}", "one instance, got 2"),
        (7, "a level must be text, rows joined by newlines, got int"),
        (SHORT.replace("@", "?"), r"level, line 2: unknown symbol '\?' in column 2; known are"),
        ("####\n#\t@#\n####", r"line 2: unknown symbol '\\t' in column 2"),
        ("##\n##", "line 1: a level needs at least 3 rows and 3 columns"),
        (SHORT.replace("@", " "), "line 1: a level needs exactly one player, got 0"),
        (f"\n{SHORT[:6]}######\n#@$.@#\n######", "line 4: a level needs exactly one player, got 2"),
        ("######\n#@$..#\n######", "line 1: .* as many targets, got 1 boxes, 2 targets"),
        ("####\n#@ #\n####", "needs boxes"),
        ("#####\n#@* #\n#####", "solved from the start"),
        (
            "######\n#@$.  \n######",
            "line 2: the wall has a gap: the player in column 2 is open to the edge",
        ),
        ("######\n#@$. #\n### ##", "line 2: the wall has a gap: the player in column 2"),
        ("  ####\n  #@$.", "at least 3 rows"),
        ("  ####\n  #@$.\n  ####", "line 2: the wall has a gap: the player in column 4"),
        (
            "#####\n#@$.#\n#####  $",
            "line 3: the wall has a gap: the box in column 8",
        ),
    ],
)
def test_malformed_levels(level, message):
    with pytest.raises(ValueError, match=message):
        Sokoban().reset(options={"level": level})


def test_states_of_a_level_belong_to_it():
    env = Sokoban()
    bare = "######\n#P___#\n#____#\n#____#\n#____#\n######"
    assert env.legal(bare) is False  # never reset, no box
    env.reset(options={"level": SHORT})
    state = env.text()
    assert env.legal(state.replace("PXO", "_P√"), state) is True
    assert env.legal(state.replace("PX", "XP"), state) is True and env.legal(OURS) is False
    assert env.legal("#####\n#P__#\n#####") is False
    assert env.reset(options={"state": state})[0] == state
    env.reset(seed=0)
    with pytest.raises(ValueError, match="6 rows of 6 symbols"):
        env.reset(options={"state": state})
    played = Sokoban(levels=LEVELS)
    played.reset(seed=0)
    assert played.legal(OURS) is True and played.legal(OURS, played.text()) is False


def test_floor_outside_becomes_wall():
    text = "     #####\n######   #\n#@ $  .  #\n######   #\n     #####"
    state, _ = Sokoban().reset(options={"level": text})
    assert state.split("\n")[0] == "##########"
    # a hollow between walls that the border leads into
    hollow = "#######\n##   ##\n# ### #\n#     #\n##   ##"
    with pytest.raises(ValueError, match="line 4: the wall has a gap: the player in column 2"):
        Sokoban().reset(options={"level": hollow.replace("#     #", "#@ $ .#")})
    inside = "##########\n#@$.##   #\n#######  #\n##########"  # closed off, but not outside
    assert Sokoban().reset(options={"level": inside})[0].split("\n")[1] == "#PXO##___#"


def test_maps_of_gymnasium():
    for name, rows in MAPS.items():
        env = FrozenLake(is_slippery=False)
        state, info = env.reset(options={"map": "\n".join(rows)})
        assert state == "\n".join(rows).translate(str.maketrans("SFHG", "P_OG"))
        assert info["content"] == f"FrozenLake {name}\n{state.replace('P', '_')}"
        assert env.reset(options={"map": state}) == (state, info)


@pytest.mark.parametrize("is_slippery", [True, False])
@pytest.mark.parametrize(
    "rows", [MAPS["4x4"], MAPS["8x8"], ["SFFFF", "FHFHG"], ["FFH", "SHG", "FFF", "HFF", "FFF"], ["SG"]]
)
def test_transitions_of_given_maps_equal_gymnasium(rows, is_slippery):
    env = FrozenLake(is_slippery=is_slippery)
    env.reset(options={"map": "\n".join(rows)})
    theirs = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=is_slippery).unwrapped
    for cell in range(len(rows) * len(rows[0])):
        for direction in range(4):
            ours = env.transitions(cell, direction)
            table = theirs.P[cell][direction]
            assert [t[1:] for t in ours] == [(int(t[1]), float(t[2]), bool(t[3])) for t in table]
            assert [t[0] for t in ours] == pytest.approx([t[0] for t in table])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SF\nFFG", "map, line 2: all rows of a map must be equally long, got 3 and 2 cells"),
        ("SF\nFX", "map, line 2: unknown symbol 'X' in column 2; known are 'P_OGSFH'"),
        ("FF\nFG", "line 1: a map needs exactly one start, got 0"),
        ("SF\nFG\nGF", "line 3: a map needs exactly one goal, got 2"),
        ("SP\nFG", "exactly one start, got 2"),
        ("SH\nHG", "holes block every path"),
        (["SF", "FG"], "a map must be text, rows joined by newlines, got list"),
    ],
)
def test_malformed_maps(text, message):
    with pytest.raises(ValueError, match=message):
        FrozenLake().reset(options={"map": text})


def test_boards_in_many_hands():
    line = "| 5 3 . . 7 . . . . | 6 . . 1 9 5 . . . "
    spaced = "\n".join(" ".join(row) for row in NINE.split("\n"))
    boxed = "\n".join(
        f"{r[:3]} | {r[3:6]} | {r[6:]}" + "\n----+-----+----" * (i in (2, 5)) for i, r in enumerate(NINE.split("\n"))
    )
    ways = [
        NINE,
        spaced,
        boxed,
        NINE.replace("\n", ""),
        NINE.replace(".", "0"),
        NINE.replace(".", "_"),
        f"; 1\n{NINE}\n\n",
    ]
    shown = {Sudoku(board_size=9).reset(options={"board": way})[0] for way in ways}
    assert len(shown) == 1 and shown.pop().startswith(line)
    env = Sudoku(state_format="coordinates")
    state, info = env.reset(options={"board": BOARD_LINE})
    assert state == f"{BOARD_LINE}\nEmpty positions to be filled are at (1,4), (4,2)."
    assert info["content"] == f"Sudoku 4x4\n{BOARD_LINE}"
    assert env.step("1,4,4")[1] == 0.0 and env.step("4,2,3")[1] == 1.0


def test_boards_with_several_solutions_are_won_by_any():
    env = Sudoku()
    two = "1 2 3 4\n3 4 1 2\n2 1 . .\n4 3 . ."
    swapped = "1 . 3 .\n3 . 1 .\n2 1 4 3\n4 3 2 1"  # rows 1 and 2 hold 2 and 4 in either order
    assert env.reset(options={"board": two})[0].count(".") == 4
    for order in ("24", "42"):
        env.reset(options={"board": swapped})
        moves = [f"1,2,{order[0]}", f"2,2,{order[1]}", f"1,4,{order[1]}", f"2,4,{order[0]}"]
        outcomes = [env.step(move)[1:3] for move in moves]
        assert outcomes[-1] == ((1.0, True) if order == "24" else outcomes[-1])
    free = Sudoku(board_size=9)
    assert free.reset(options={"board": "." * 81})[0].count(".") == 81


@pytest.mark.parametrize(
    ("board", "message"),
    [
        (
            "1234\n3412\n2143\n43.x",
            "board, line 4: 'x' is not a cell: a cell is a digit from 1 to 4 or, if empty, one of '.0_'",
        ),
        ("1234\n3412\n2143\n43.5", "'5' is not a cell"),
        ("1234\n3412\n214\n43..", "line 3: a row of a 4x4 board has 4 cells, got 3; see board_size"),
        ("1234\n3412\n2143", "a 4x4 board has 16 cells, got 12"),
        (NINE, "line 1: a row of a 4x4 board has 4 cells, got 9; see board_size"),
        ("1...\n.1..\n....\n....", r"line 1: the 1 at \(1,1\) is repeated in its row, column or box"),
        ("1234\n3412\n2143\n4321", "the board has no empty cell"),
        ("123.\n...4\n....\n....", "the board has no solution"),
        (None, None),
        (b"1234", "a board must be text"),
    ],
)
def test_malformed_boards(board, message):
    if board is None:  # as if the option were not given
        assert Sudoku().reset(seed=1, options={"board": None}) == Sudoku().reset(seed=1)
        return
    with pytest.raises(ValueError, match=message):
        Sudoku().reset(options={"board": board})


@pytest.mark.parametrize("name", INSTANCES)
def test_options_of_an_instance(name):
    option, text = INSTANCES[name]
    env = make_env(name)
    state, _ = env.reset(seed=3, options={option: text})
    assert env.reset()[0] == _second(name)  # the sequence of worlds does not depend on the option
    with pytest.raises(ValueError, match=f"give one of the options 'state' and '{option}', not both"):
        env.reset(options={option: text, "state": state})
    with pytest.raises(ValueError, match=f"Did you mean '{option}'"):
        env.reset(options={option + "s": text})


def _second(name: str) -> str:
    env = make_env(name)
    env.reset(seed=3)
    return env.reset()[0]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("state_format", STATE_FORMATS)
def test_a_file_keeps_the_contract(name, state_format, tmp_path):
    env = make_env(name, levels=str(file_of(name, tmp_path)), state_format=state_format)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not having a spec")
        check_env(env)
    rng = np.random.default_rng(0)
    for seed in range(6):
        state, info = env.reset(seed=seed)
        start = state
        assert state in env.observation_space and env.legal(state)
        twin = pickle.loads(pickle.dumps(env))
        for _ in range(30):
            before = state
            state, _, terminated, truncated, info = env.step(env.sample_action(rng))
            assert state in env.observation_space and env.legal(state, before) is True
            if terminated or truncated:
                break
        assert twin.render() == start
        # A state of one size after an episode of another: every state of the file may be loaded.
        other = make_env(name, levels=file_of(name, tmp_path), state_format=state_format)
        other.reset(seed=seed + 1)
        loaded, again = other.reset(options={"state": start, "noise_seed": 0})
        grid = loaded.split("\n")[:-1] if state_format != "grid" else loaded.split("\n")
        assert grid == start.split("\n")[: len(grid)] and again["content"] == info["content"]


@pytest.mark.parametrize("name", FILES)
def test_seeds_are_the_levels_in_order(name, tmp_path):
    path = file_of(name, tmp_path)
    env = make_env(name, levels=path)
    count = COUNTS[name]
    states = [env.reset(seed=seed)[0] for seed in range(count)]
    assert len(set(states)) == count
    assert [env.reset(seed=seed)[0] for seed in range(count, 3 * count)] == 2 * states
    env.reset(seed=0)
    drawn = [env.reset()[0] for _ in range(40)]
    assert set(drawn) == set(states)  # without a seed a random one, the same ones after the same seed
    env.reset(seed=0)
    assert drawn == [env.reset()[0] for _ in range(40)]


@pytest.mark.parametrize("name", FILES)
def test_an_instance_may_be_larger_than_the_settings_say(name):
    option, text = INSTANCES[name]
    larger = {"sokoban": OURS, "frozen_lake": "\n".join(MAPS["8x8"]), "sudoku": text}[name]
    small = {"sokoban": {"dim_room": (5, 5)}, "frozen_lake": {"size": 2}, "sudoku": {}}[name]
    for state_format in STATE_FORMATS:
        env = gymnasium.make(f"spa/{type(make_env(name)).__name__}-v0", state_format=state_format, **small)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Gymnasium's checker warns of a state outside of the space
            state, _ = env.reset(seed=0, options={option: larger})
            assert state in env.observation_space
            env.step(env.unwrapped.actions[0] if env.unwrapped.actions else "1,4,4")
            assert env.unwrapped.legal(env.unwrapped.text()) is True
            state, _ = env.reset(seed=0)
            assert state in env.observation_space and env.unwrapped.legal(state)


def test_splits_share_no_level(tmp_path):
    rows = [f"{'#' * (n + 5)}\n#@$.{' ' * n} #\n{'#' * (n + 6)}\n" for n in range(30)]
    rows = [row.replace("#" * (n + 5) + "\n", "#" * (n + 6) + "\n", 1) for n, row in enumerate(rows)]
    (tmp_path / "many.txt").write_text("\n".join(rows), encoding="utf-8")
    task = Task(EnvConfig(id="sokoban", settings={"levels": str(tmp_path / "many.txt")}))
    found = {}
    for split, first in (("test", 0), ("train", 10**9), ("selfplay", 2 * 10**9)):
        found[split] = {world.content for world in WorldSource(task, split, first).take(60)}
    assert all(found.values()) and not found["test"] & found["train"] and not found["train"] & found["selfplay"]
    assert len(found["train"]) > 8  # of about fifteen


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "sokoban",
            f"; 0\n{SHORT}\n\n; 1\n#####\n#@$,#\n#####\n",
            r"rooms\.txt, line 8: unknown symbol ',' in column 4",
        ),
        ("sokoban", f"{SHORT}\n\n#####\n#@$ #\n#####\n", r"rooms\.txt, line 5: .* 1 boxes, 0 targets"),
        ("sokoban", "Title: mine\n#####\n", r"rooms\.txt, line 1: unknown symbol 'T'"),
        ("sokoban", "\n; nothing\n\n", r"rooms\.txt holds no instance"),
        ("frozen_lake", "SF\nFG\n\nSF\nF\n", r"rooms\.txt, line 5: all rows"),
        ("sudoku", f"{'.' * 16}\n{'1' * 16}\n", r"rooms\.txt, line 2: the 1 at \(1,1\) is repeated"),
        ("sudoku", NINE, r"rooms\.txt, line 1: .*board_size"),
    ],
)
def test_malformed_files(name, text, message, tmp_path):
    path = tmp_path / "rooms.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        make_env(name, levels=str(path))


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"levels: no file .*absent\.txt"):
        Sokoban(levels=tmp_path / "absent.txt")
    with pytest.raises(ValueError, match="is a folder; give a file"):
        Sokoban(levels=str(tmp_path))
    with pytest.raises(ValueError, match="levels must be the path of a file, got 3"):
        FrozenLake(levels=3)
    (tmp_path / "raw.txt").write_bytes(b"#####\n#\xff$.#\n#####")
    with pytest.raises(ValueError, match=r"raw\.txt, line 2: not UTF-8 text"):
        Sokoban(levels=tmp_path / "raw.txt")
    with pytest.raises(ValueError, match="omit them or levels"):
        Sokoban(levels=LEVELS, max_moves=3)


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "rooms.txt"
    path.write_bytes(b"\xef\xbb\xbf" + SHORT.replace("\n", "\r\n").encode())  # as Windows writes it
    assert Sokoban(levels=path).reset(seed=0)[0] == "#####\n#PXO#\n#####"
    path.write_text(OURS, encoding="utf-8")
    assert Sokoban(levels=path).reset(seed=0)[0] == OURS


@settings(max_examples=150)
@given(st.text(alphabet="#_ -.$*@+OX√PSFHG|0123;\n\t\u00a0é", max_size=60), st.sampled_from(sorted(INSTANCES)))
def test_any_text_is_an_instance_or_an_error(text, name):
    env = make_env(name)
    try:
        state, _ = env.reset(seed=0, options={INSTANCES[name][0]: text})
    except ValueError as error:
        problem = str(error)
        assert problem and "\n" not in problem
    else:
        assert env.legal(state) and state in env.observation_space
        env.step(env.actions[0] if env.actions else "1,1,1")


@pytest.mark.parametrize("name", FILES)
def test_the_pages_of_the_documentation(name, tmp_path):
    page = Path(__file__).parents[2].joinpath("docs", "worlds", f"{name}.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    shown: dict[str, object] = {}
    exec(code, shown)
    assert shown["info"]["valid"] and shown["info"]["effective"]
    files = [block.split("```")[0] for block in page.split("```\n; 0")[1:]]
    assert len(files) == (name != "sudoku")
    for file in files:
        path = tmp_path / "levels.txt"
        path.write_text("; 0" + file, encoding="utf-8")
        env = make_env(name, levels=path)
        assert env.reset(seed=0)[0] != env.reset(seed=1)[0] and env.reset(seed=2)[0] == env.reset(seed=0)[0]
