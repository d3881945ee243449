"""How to learn what the model expects of reward and end: as text behind the prediction, or by a linear head on the trunk?

    python scripts/outcome_head.py RUN/selfplay --tag MODEL --plain MODEL

``--tag`` was trained on the rows of RUN/selfplay (``selfplay.rows=transitions``), ``--plain`` on the same rows without the outcomes
(``--strip FOLDER`` writes those). Both read the true next state of the validation rows, from worlds that no row of training is of.
The text's share of an outcome is its likelihood among the outcomes that occur in training; the head is a softmax over the same
outcomes on the last hidden state of ``</prediction>``, fitted to the training rows by L-BFGS with the trunk as it is.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from spa.agent.policy import Policy
from spa.config.schema import Config
from spa.data.encode import prompt_ids
from spa.data.ground_truth import Row
from spa.data.layouts import read_rows, write_rows
from spa.data.transitions import END
from spa.evaluate.planned import area_under_curve
from spa.models.forward import hidden_states
from spa.models.score import Chosen, sum_logprobs
from spa.runs.stage import model_of

OPEN, CLOSE = "<outcome>", "</outcome>"


def outcome_of(row: Row) -> str:
    return row.response.partition(OPEN)[2].partition(CLOSE)[0]


def without_outcome(row: Row) -> Row:
    before, _, rest = row.response.partition(OPEN)
    return replace(row, response=before + rest.partition(CLOSE)[2])


def by_text(policy: Policy, rows: list[Row], kinds: list[str]) -> np.ndarray:
    """(rows, kinds) log-likelihoods."""
    asked = []
    for row in rows:
        start = prompt_ids(row.prompt, policy.chat)
        known = row.response.partition(OPEN)[0] + OPEN
        for kind in kinds:
            encoded = policy.chat.encode_response(known + kind + CLOSE)
            places = [len(start) + i for i, (_, high) in enumerate(encoded.offsets) if high > len(known)]
            asked.append(Chosen([*start, *encoded.ids], places))
    return np.array(sum_logprobs(policy.model, asked)).reshape(len(rows), len(kinds))


@torch.no_grad()
def features(policy: Policy, rows: list[Row]) -> torch.Tensor:
    """(rows, D) hidden states at the end of the prediction."""
    out = []
    for row in rows:
        text = row.response.partition("</prediction>")[0] + "</prediction>"
        ids = [*prompt_ids(row.prompt, policy.chat), *policy.chat.encode_response(text).ids]
        out.append(hidden_states(policy.model, torch.tensor([ids]))[0, -1])
    return torch.stack(out).float()


def by_head(policy: Policy, train: list[Row], test: list[Row], kinds: list[str]) -> np.ndarray:
    x, y = features(policy, train), torch.tensor([kinds.index(outcome_of(row)) for row in train])
    mean, spread = x.mean(0), x.std(0) + 1e-6
    head = torch.nn.Linear(x.shape[1], len(kinds))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(head((x - mean) / spread), y) + 1e-4 * head.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return np.asarray(head((features(policy, test) - mean) / spread))


def describe(name: str, scores: np.ndarray, truth: list[str], kinds: list[str]) -> None:
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    guessed = [kinds[i] for i in shares.argmax(1)]
    ends = shares[:, [kind.endswith(END) for kind in kinds]].sum(1)
    area = area_under_curve(list(zip(ends.tolist(), (t.endswith(END) for t in truth), strict=True)))
    rare = [(g, t) for g, t in zip(guessed, truth, strict=True) if t != Counter(truth).most_common(1)[0][0]]
    exact = np.mean([g == t for g, t in zip(guessed, truth, strict=True)])
    print(
        f"{name}: outcome exact {exact:.4f}, of the rarer ones {np.mean([g == t for g, t in rare]):.4f}, AUC of the end {area:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--strip", type=Path)
    parser.add_argument("--tag")
    parser.add_argument("--plain")
    args = parser.parse_args()
    train, test = (read_rows(args.data / f"{name}.parquet")[0] for name in ("train", "val"))
    if args.strip:
        args.strip.mkdir(parents=True, exist_ok=True)
        for name, rows in (("train", train), ("val", test)):
            write_rows(args.strip / f"{name}.parquet", [without_outcome(row) for row in rows])
        return
    kinds = list(Counter(map(outcome_of, train)))
    test = [row for row in test if outcome_of(row) in kinds]
    truth = [outcome_of(row) for row in test]
    print(f"{len(train)} and {len(test)} rows, outcomes: {dict(Counter(truth))}")
    for path in filter(None, (args.tag, args.plain)):
        cfg = Config()
        model = model_of(path, "--tag" if path == args.tag else "--plain")
        policy = Policy.load(replace(cfg, model=replace(cfg.model, device="cpu")), model)
        if path == args.tag:
            describe("text", by_text(policy, test, kinds), truth, kinds)
        describe(
            "head on the trunk trained with the text" if path == args.tag else "head",
            by_head(policy, train, test, kinds),
            truth,
            kinds,
        )


if __name__ == "__main__":
    main()
