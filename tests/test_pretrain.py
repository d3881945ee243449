"""The corpus holds no dynamics; a short pretraining is deterministic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from spa.agent.response import parse_response
from spa.config.schema import ModelConfig
from spa.models.load import load_model
from spa.pretrain.corpus import WORLDS, Corpus, random_board
from spa.pretrain.train import PretrainConfig, encode, pretrain
from tests.scripted import CHAT


def documents(count: int = 300):
    corpus = Corpus(np.random.default_rng(0), [(name, 1.0) for name in WORLDS])
    return [corpus.document() for _ in range(count)]


def test_every_document_has_the_format_it_is_asked_for() -> None:
    for document in documents():
        mode = "world_model" if "<prediction>" in document.user else "base"
        parsed = parse_response(document.response, mode)
        assert parsed.format_ok
        assert 1 <= len(parsed.actions) <= 5
        if mode == "world_model":
            assert document.user.startswith(str(parsed.observation))
            assert parsed.prediction == document.unrelated
        else:
            assert parsed.observation is parsed.prediction is None


def test_predictions_have_nothing_to_do_with_the_state() -> None:
    """Another random board: it agrees with the document's own no more often than with the next document's."""
    boards = [d for d in documents(1500) if d.unrelated and "#" in d.user and "Player" not in d.user]
    same = [np.mean([a == b for a, b in zip(d.unrelated, d.user, strict=False)]) for d in boards]
    other = [np.mean([a == b for a, b in zip(d.unrelated, e.user, strict=False)]) for d, e in pairwise(boards)]
    assert abs(np.mean(same) - np.mean(other)) < 0.02


def test_actions_are_blind_to_the_board() -> None:
    first = [parse_response(d.response, "base").actions[0] for d in documents(2000) if "<observation>" not in d.user]
    moves = [a for a in first if "," not in a]
    counts = np.array([moves.count(name) for name in ("Up", "Down", "Left", "Right")]) / len(moves)
    assert np.abs(counts - 0.25).max() < 0.05


@pytest.mark.parametrize("name", list(WORLDS))
def test_boards_are_not_made_by_the_world(name: str, monkeypatch) -> None:
    import spa.envs.sokoban.generator as generator

    monkeypatch.setattr(generator, "generate_room", lambda *args, **kwargs: pytest.fail("the generator was called"))
    assert random_board(name, np.random.default_rng(0))


def test_loss_weights() -> None:
    document = next(d for d in documents() if d.unrelated)
    ids, weights = encode(document, CHAT, 0.1)
    start = len(CHAT.opening(None, document.user)) + len(CHAT.forced_ids)
    assert len(ids) == len(weights)
    assert set(weights[:start]) == {0.0}
    light = CHAT.decode([i for i, w in zip(ids, weights, strict=True) if w == 0.1])
    assert light == document.unrelated


@pytest.mark.slow
def test_a_short_pretraining_repeats(tmp_path) -> None:
    small = {"steps": 6, "batch_documents": 8, "hidden_size": 32, "num_layers": 1, "intermediate_size": 32}
    config = PretrainConfig(**small, measure=False, warmup_steps=1, lr=1e-2)
    for name in ("a", "b"):
        pretrain(config, tmp_path / name)
    a, b = (load_model(ModelConfig(path=str(tmp_path / name), device="cpu")).state_dict() for name in ("a", "b"))
    assert all((a[key] == b[key]).all() for key in a)
    assert "`steps=6`" in (tmp_path / "a" / "README.md").read_text()


def test_unknown_worlds_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'sudoku'"):
        pretrain(PretrainConfig(worlds={"sudoko": 1.0}), tmp_path / "x")
    with pytest.raises(ValueError, match="at least one world"):
        pretrain(PretrainConfig(worlds={}), tmp_path / "x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 100, "num_heads": 3}, "num_heads must be a multiple"),
        ({"num_kv_heads": 3}, "num_heads must be a multiple"),
        ({"hidden_size": 12}, "hidden_size one of 2 x num_heads"),  # rotary embeddings turn pairs
        ({"vocab_size": 100}, "vocab_size=100 holds not even all bytes"),
        ({"start": "builtin:tiny", "hidden_size": 64, "vocab_size": 700}, "leave out hidden_size, vocab_size"),
        ({"lr": 1e30, "steps": 30, "warmup_steps": 0, "batch_documents": 2}, "diverged at step .* of 30: lower lr"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(tmp_path, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        pretrain(PretrainConfig(**settings), tmp_path / "x")
    assert not (tmp_path / "x").exists()
