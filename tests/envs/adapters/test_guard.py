"""The global random state is kept apart from that of other libraries, and a missing library is named."""

from __future__ import annotations

import copy
import pickle
import random
import re
import sys
import threading

import numpy as np
import pytest

from spa.envs import make_env
from spa.envs.adapters import ADAPTERS, guard
from spa.envs.adapters.guard import RandomGuard, untouched


@pytest.mark.parametrize(
    "prefix, extra", [("reasoning_gym", "reasoning-gym"), ("textarena", "textarena"), ("gem", "gem")]
)
def test_a_missing_library_names_its_extra(monkeypatch, prefix, extra):
    for module in [one for one in sys.modules if one.partition(".")[0] == prefix]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, prefix, None)  # as if it were not installed
    with pytest.raises(ValueError, match=re.escape(f"pip install 'spa-agent[{extra}]'")):
        make_env(ADAPTERS[prefix].example)


@pytest.mark.usefixtures("put_back_global_state")
def test_a_guard_is_as_if_alone():
    alone = RandomGuard(3)
    with alone:
        expected = [random.random(), np.random.random(), random.gauss(0, 1), random.random(), np.random.random()]
    mine, other = RandomGuard(3), RandomGuard(4)
    outside = random.Random(9)
    random.seed(9)
    drawn = []
    for draw in (random.random, np.random.random, lambda: random.gauss(0, 1), random.random, np.random.random):
        with other:
            random.random()
            np.random.random()
        with mine:
            drawn.append(draw())
        assert random.random() == outside.random()
    assert drawn == expected


def test_a_guard_puts_back_after_an_error_and_copies(global_state):
    guard = RandomGuard(1)
    before = global_state()
    with pytest.raises(KeyError), guard:
        raise KeyError(random.random())
    assert global_state() == before
    twin, forked = pickle.loads(pickle.dumps(guard)), guard.fork()
    draws = []
    for one in (guard, twin, forked, copy.deepcopy(RandomGuard(1))):
        with one:
            draws.append((random.random(), np.random.random()))
    assert draws[0] == draws[1] == draws[2] != draws[3]


@pytest.mark.parametrize("hangs", [False, True])
def test_of_several_threads_one_at_a_time_is_untouched(monkeypatch: pytest.MonkeyPatch, hangs: bool):
    monkeypatch.setattr(guard, "PATIENCE", 0.05 if hangs else 60.0)
    monkeypatch.setattr(guard, "_lock", threading.RLock())
    outputs = sys.stdout, sys.stderr
    inside, leave, second = threading.Event(), threading.Event(), threading.Event()

    def first_world() -> None:
        with untouched():
            inside.set()
            leave.wait(30)

    def second_world() -> None:
        with untouched(), RandomGuard(1):
            second.set()

    threads = [threading.Thread(target=first_world), threading.Thread(target=second_world)]
    threads[0].start()
    inside.wait(30)
    threads[1].start()
    assert second.wait(20 if hangs else 0.2) == hangs, "one that hangs is not waited for for ever"
    if hangs:  # until the other is out again
        threads[1].join(30)
    leave.set()
    for thread in threads:
        thread.join(30)
    assert second.is_set() and (sys.stdout, sys.stderr) == outputs
