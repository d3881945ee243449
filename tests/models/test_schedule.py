"""Learning rates against transformers' own schedules."""

from __future__ import annotations

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_wsd_schedule

from spa.models.optim import lr_factor


def reference(schedule: str, warmup: int, total: int, decay: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    if schedule == "cosine":
        scheduler = get_cosine_schedule_with_warmup(optimizer, warmup, total)
    else:
        scheduler = get_wsd_schedule(
            optimizer,
            num_warmup_steps=warmup,
            num_decay_steps=decay,
            num_stable_steps=total - warmup - decay,
            decay_type="cosine",
        )
    factors = []
    for _ in range(total):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("warmup, total, decay", [(0, 20, 5), (4, 40, 10), (5, 50, 45)])
def test_after_the_warm_up_they_agree(schedule: str, warmup: int, total: int, decay: int) -> None:
    ours = [lr_factor(i, warmup=warmup, total=total, schedule=schedule, decay=decay) for i in range(total)]
    assert ours[warmup:] == pytest.approx(reference(schedule, warmup, total, decay)[warmup:])


def test_the_warm_up_ends_at_the_peak_and_never_idles() -> None:
    assert [lr_factor(i, warmup=4, total=10) for i in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_decay_longer_than_what_the_warm_up_leaves_starts_after_it() -> None:
    factors = [lr_factor(i, warmup=5, total=10, schedule="wsd", decay=9) for i in range(10)]
    assert factors[:6] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    assert factors == sorted(factors[:6]) + sorted(factors[6:], reverse=True)
