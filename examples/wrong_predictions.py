"""Where a model's world model is wrong: its predictions against what happened, as a data frame.

python examples/wrong_predictions.py RUN/sft        # of a run of frozen_lake
"""

import sys

import spa


def main(model: str | None = None, worlds: int = 16) -> None:
    """Plays ``worlds`` validation worlds with the world-model prompt and prints the predictions that did not come true."""
    settings = ("agent.prompt=world_model", "env.state_format=coordinates")
    episodes = spa.play("frozen_lake", *settings, model=model, worlds=worlds, split="val")
    turns = spa.episodes_frame(episodes)
    turns = turns[turns["prediction"].notna()]
    wrong = turns[turns["prediction"].str.strip() != turns["next_state"].str.strip()]
    print(f"{len(wrong)} of {len(turns)} predictions are wrong")
    for _, turn in wrong.head(3).iterrows():
        print(
            f"\nworld {turn['seed']}, after {turn['executed']}:\n{turn['prediction'].strip()}\nbut:\n{turn['next_state']}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
