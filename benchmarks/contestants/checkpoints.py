"""One measurement of benchmarks/checkpoints.py, in every rank."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import async_save

tokens, repeats, *settings = sys.argv[1:]

from spa.agent.policy import Policy  # noqa: E402
from spa.config.load import load_config  # noqa: E402
from spa.data.encode import Example  # noqa: E402
from spa.models.load import save_checkpoint  # noqa: E402
from spa.scale import ranks  # noqa: E402
from spa.scale.checkpoints import named_tensors, save_tensors, storage_writer  # noqa: E402
from spa.sft.train import SFTTrainer  # noqa: E402

length = int(tokens)
fixed = [f"sft.micro_batch_tokens={length}", "sft.epochs=1", "sft.save_every=1000"]
cfg = load_config("frozen_lake", [*settings, *fixed])
joined = ExitStack()
joined.enter_context(ranks.joined(cfg.scale))
group = dist.new_group(backend="gloo")  # the writer's collectives must not meet those of training
policy = Policy.load(cfg)
rng = np.random.default_rng(0)
rows = [rng.integers(policy.model.config.vocab_size, size=length).tolist() for _ in range(ranks.world())]
examples = [Example(ids, list(range(length * 3 // 4, length))) for ids in rows]
seconds: dict[str, list[float]] = {}


def timed(name: str, since: float) -> None:
    dist.barrier()
    seconds.setdefault(name, []).append(time.perf_counter() - since)


with tempfile.TemporaryDirectory() as out:
    folder = Path(ranks.on_main(lambda: out))
    trainer = SFTTrainer(policy.model, policy.tokenizer, examples, [], cfg.sft, folder, seed=0, log=lambda *_: None)
    trainer._one_step(examples)
    for repeat in range(int(repeats)):
        started = time.perf_counter()
        trainer._one_step(examples)
        timed("step", started)

        started = time.perf_counter()
        save_checkpoint(policy.model, policy.tokenizer, folder / f"whole{repeat}", {}, trainer.optimizer, {})
        timed("checkpoint", started)

        started = time.perf_counter()
        save_tensors(folder / f"sharded{repeat}", trainer.optimizer, {})
        timed("sharded", started)

        tensors = named_tensors(trainer.optimizer, {})
        writer = storage_writer(folder / f"async{repeat}", tensors)
        started = time.perf_counter()
        future = async_save(tensors, storage_writer=writer, process_group=group)
        timed("staged", started)
        beside = time.perf_counter()
        trainer._one_step(examples)
        timed("step_beside", beside)
        future.result()
        timed("written", started)
    mib = sum(tensor.nbytes for tensor in tensors.values()) / 2**20  # of whole tensors
    if ranks.is_main():
        print(json.dumps({"mib": mib, **seconds}))
    dist.barrier()
joined.close()
