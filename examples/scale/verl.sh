#!/bin/bash
# PPO of our tasks with verl 0.9 (pip install 'spa-agent[verl]' and verl's own extras, in an environment of their own):
#   spa data export-verl sokoban agent.window=0 --variant vanilla --out data/verl && bash examples/scale/verl.sh data/verl MODEL
set -euo pipefail
DATA=$(realpath "$1")
MODEL=$2
shift 2

OVERRIDES=(
    data.train_files="$DATA/train.parquet"
    data.val_files="$DATA/val.parquet"
    data.train_batch_size=32
    data.max_prompt_length=1024
    data.max_response_length=3072 # of all turns, with what the world says in between
    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=8 # episodes a world
    actor_rollout_ref.rollout.calculate_log_probs=true
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$DATA/agent_loop.yaml"
    actor_rollout_ref.rollout.agent.default_agent_loop=spa
    algorithm.adv_estimator=grpo
    trainer.project_name=spa
    trainer.n_gpus_per_node=8
    trainer.nnodes=1
)
exec "${PYTHON:-python3}" -m verl.trainer.main_ppo "${OVERRIDES[@]}" "$@"
