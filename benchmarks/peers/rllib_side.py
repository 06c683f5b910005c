"""N independent learners of RLlib in one process: questions and answers as in `sb3_side.py`.

One multi-agent environment, one module for each agent, RLlib's new API stack. That is its fastest form: an `Algorithm`
for each agent takes longer, and DQN of the old stack cannot be built in Ray 2.60 (it looks for a text in the class of
its buffer). DQN moves the target network a little after every update and clips gradients, as ours does.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"  # it would write between the answers
warnings.simplefilter("ignore")

import gymnasium  # noqa: E402 - reads the environment
import ray  # noqa: E402
import torch  # noqa: E402
from answering import serve  # noqa: E402
from gym_drift import GymDrift  # noqa: E402
from ray.rllib.algorithms.algorithm import Algorithm  # noqa: E402
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig  # noqa: E402
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.env.multi_agent_env import MultiAgentEnv  # noqa: E402

torch.set_num_threads(1)


class Worlds(MultiAgentEnv):
    """Agents that each have a Gymnasium environment of their own; one whose episode has ended starts the next one.

    RLlib ends a multi-agent episode for all agents at once, so no end is ever reported: the same steps are taken.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.worlds = {name: config["make"]() for name in names(config["agents"])}
        self.agents = self.possible_agents = list(self.worlds)
        self.observation_spaces = {name: world.observation_space for name, world in self.worlds.items()}
        self.action_spaces = {name: world.action_space for name, world in self.worlds.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return {name: world.reset()[0] for name, world in self.worlds.items()}, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        observations, rewards = {}, {}
        for name, action in actions.items():
            world = self.worlds[name]
            observations[name], rewards[name], terminated, truncated, _ = world.step(action)
            if terminated or truncated:
                observations[name], _ = world.reset()
        going = {"__all__": False}
        return observations, rewards, going, going, {}


def names(agents: int) -> list[str]:
    return [f"agent_{k}" for k in range(agents)]


def built(config: AlgorithmConfig, agents: int, hidden: tuple[int, ...], activation: str, make: Any) -> Algorithm:
    """Return the algorithm, with one module per agent, that samples and learns in this process."""
    return (
        config.environment(Worlds, env_config={"agents": agents, "make": make})
        .framework("torch")
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .multi_agent(policies=set(names(agents)), policy_mapping_fn=lambda agent, *_, **__: agent)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(hidden), fcnet_activation=activation))
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
        .debugging(seed=0, log_level="ERROR")
        .build_algo()
    )


@cache
def dqn_learner(agents: int, sizes: tuple[int, ...], batch: int, interval: int, rows: int) -> Algorithm:
    """Return the learners, with buffers that hold a batch."""
    config = (
        DQNConfig()
        .env_runners(rollout_fragment_length=interval)
        .training(
            lr=1e-3,
            gamma=0.95,
            grad_clip=10.0,
            train_batch_size=batch,
            double_q=True,
            dueling=False,
            n_step=1,
            num_atoms=1,
            noisy=False,
            tau=0.01,
            target_network_update_freq=1,
            epsilon=0.05,
            num_steps_sampled_before_learning_starts=batch,
            replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": rows * agents},
        )
    )
    made = built(config, agents, sizes[1:-1], "relu", partial(GymDrift, sizes[0], sizes[-1]))
    for _ in range(batch // interval):
        made.training_step()
    return made


@cache
def ppo_learner(
    agents: int, hidden: tuple[int, ...], worlds: int, turns: int, passes: int, minibatches: int
) -> Algorithm:
    """Return the learners, each with its own CartPoles."""
    config = (
        PPOConfig()
        .env_runners(num_envs_per_env_runner=worlds, rollout_fragment_length=turns)
        .training(
            lr=3e-4,
            gamma=0.99,
            lambda_=0.95,
            use_kl_loss=False,
            clip_param=0.2,
            grad_clip=0.5,
            vf_loss_coeff=0.5,
            vf_clip_param=float("inf"),
            entropy_coeff=0.0,
            train_batch_size=turns * worlds,
            minibatch_size=(turns + 1) * worlds // minibatches,  # of each world one masked sample, the last value
            num_epochs=passes,
        )
    )
    return built(config, agents, hidden, "tanh", partial(gymnasium.make, "CartPole-v1"))


class Counter:
    """Counts what the modules of an algorithm have done: optimizer steps, and the samples in them."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.updates = self.samples = 0
        learner = algorithm.learner_group._learner
        update: Callable[..., Any] = learner._update

        def counted(batch: dict[str, Any], *arguments: Any, **options: Any) -> Any:
            self.updates += len(batch)
            self.samples += sum(
                int(own["loss_mask"].sum()) if "loss_mask" in own else len(own["rewards"]) for own in batch.values()
            )
            return update(batch, *arguments, **options)

        learner._update = counted


@cache
def counter(algorithm: Algorithm) -> Counter:
    return Counter(algorithm)


def timed(algorithm: Algorithm, steps: int) -> tuple[float, int, int]:
    """Return the seconds, updates and samples of some training steps."""
    own = counter(algorithm)
    before = own.updates, own.samples
    start = time.perf_counter()
    for _ in range(steps):
        algorithm.training_step()
    return time.perf_counter() - start, own.updates - before[0], own.samples - before[1]


def dqn(agents: int, sizes: list[int], batch: int, turns: int, interval: int, rows: int) -> dict[str, Any]:
    """Let every agent take its turns and updates."""
    learner = dqn_learner(agents, tuple(sizes), batch, interval, rows)
    seconds, updates, samples = timed(learner, turns // interval)
    return {"counts": {"agent turns": agents * turns, "updates": updates, "samples": samples}, "seconds": seconds}


def ppo(
    agents: int, hidden: list[int], worlds: int, turns: int, epochs: int, passes: int, minibatches: int
) -> dict[str, Any]:
    """Let every agent play its epochs and learn from each."""
    learner = ppo_learner(agents, tuple(hidden), worlds, turns, passes, minibatches)
    seconds, updates, samples = timed(learner, epochs)
    counts = {"world turns": agents * worlds * turns * epochs, "updates": updates, "samples": samples}
    return {"counts": counts, "seconds": seconds}


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # RLlib prints; only answers belong into the output
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    ray.init(num_cpus=1, **quiet)
    sys.stdout = answers
    serve({"dqn": dqn, "ppo": ppo}, f"rllib {ray.__version__}, torch {torch.__version__}")
