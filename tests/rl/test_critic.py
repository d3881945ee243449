"""Critics: the dtype of values, and the trunks that they read."""

from __future__ import annotations

import pytest
import torch

from spa.rl.critic import Critic
from tests.models.networks import with_images
from tests.rl.test_update_settings import make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_not_rounded_in_autocast(dtype: torch.dtype) -> None:
    _, one = make(critic="head")
    assert one.critic is not None
    hidden = torch.randn(50, one.critic.head.in_features, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = one.critic.head(hidden.float()).squeeze(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = one.critic.values(None, hidden)  # type: ignore[arg-type]
    assert values.dtype == torch.float32 and torch.equal(values, expected)


def test_a_critic_of_a_model_of_several_parts() -> None:
    assert Critic("head", with_images()).head.in_features == 32
