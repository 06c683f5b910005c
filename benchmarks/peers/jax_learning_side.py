"""Independent PPO in JAX as JaxMARL and CleanRL write it, for learning beside ours: asked as in `peers_learning.py`.

    {"what": "learn", "task": {…the fields of `learning_tasks.Task`…}, "seed": 0}

Every agent has a network, an optimizer and random numbers of its own. Acting and the whole round (GAE, passes and
minibatches by `scan`) are jitted; worlds are stepped by Python. A time limit counts as an end, as in JaxMARL.
"""

import importlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.argv[1:] = ["1"]  # one device
sys.path.append(str(Path(__file__).parents[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from answering import serve  # noqa: E402
from jax_side import adam, forward  # noqa: E402
from learning_tasks import EPISODES, EVALUATIONS, Task, made  # noqa: E402


class Alone:
    """A Gymnasium environment as one of several agents, of which there is one."""

    def __init__(self, name: str, repeat: int) -> None:
        self.env = made(name, repeat)
        self.spaces = {"agent": (self.env.observation_space, self.env.action_space)}

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        return {"agent": self.env.reset(seed=seed)[0]}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float], bool]:
        seen, reward, terminated, truncated, _ = self.env.step(actions["agent"])
        return {"agent": seen}, {"agent": float(reward)}, terminated or truncated


class Together:
    """A parallel PettingZoo environment whose agents all leave at once."""

    def __init__(self, name: str) -> None:
        self.env = importlib.import_module(name).parallel_env()
        names = self.env.possible_agents
        self.spaces = {name: (self.env.observation_space(name), self.env.action_space(name)) for name in names}

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        return dict(self.env.reset(seed=seed)[0])

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float], bool]:
        seen, rewards, _, _, _ = self.env.step(actions)
        return seen, rewards, not self.env.agents


class Learner:
    """One agent: policy, value, optimizer."""

    def __init__(self, task: Task, observation: Any, action: Any, key: Any) -> None:
        self.task, self.low = task, getattr(action, "low", None)
        self.high, self.discrete = getattr(action, "high", None), hasattr(action, "n")
        outputs = int(action.n) if self.discrete else int(np.prod(action.shape))
        inputs = int(np.prod(observation.shape))
        policy, value, self.key = jax.random.split(key, 3)
        self.weights = {
            "policy": network(policy, (inputs, *task.hidden, outputs), 0.01),
            "value": network(value, (inputs, *task.hidden, 1), 1.0),
            "log_std": jnp.zeros(outputs),
        }
        zeros = jax.tree.map(jnp.zeros_like, self.weights)
        self.moments = (zeros, zeros, jnp.zeros(()))

    def compile(self, seen: Any) -> None:
        """Compile what acting and a round need, and change nothing."""
        actions, logs, values = drawn(self.weights, seen, self.key, self.discrete)
        own = (seen, actions, logs, values, np.zeros(len(seen), np.float32), np.zeros(len(seen), np.float32))
        rollout = tuple(np.stack([np.asarray(column)] * self.task.turns) for column in own)
        round_of = partial(learned, task=self.task, discrete=self.discrete)
        once = round_of(self.weights, self.moments, rollout, seen, self.key)
        jax.block_until_ready(round_of(*once, rollout, seen, self.key))  # types that differ compile once more

    def act(self, seen: Any) -> tuple[Any, Any, Any]:
        """Return drawn actions, their log-probabilities, and values."""
        self.key, own = jax.random.split(self.key)
        return tuple(np.asarray(part) for part in drawn(self.weights, seen, own, self.discrete))

    def best(self, seen: Any) -> Any:
        """Return the most likely actions."""
        outputs = np.asarray(most_likely(self.weights["policy"], seen))
        return self.allowed(outputs.argmax(-1) if self.discrete else outputs)

    def allowed(self, actions: Any) -> Any:
        """Return actions within the bounds of the environment."""
        return actions if self.discrete else np.clip(actions, self.low, self.high)

    def learn(self, rollout: Any, last: Any) -> None:
        """Learn from a rollout (turns, worlds): observations, actions, log-probabilities, values, rewards, ends."""
        self.key, own = jax.random.split(self.key)
        self.weights, self.moments = learned(
            self.weights, self.moments, rollout, last, own, task=self.task, discrete=self.discrete
        )


def log_probs(weights: Any, outputs: Any, actions: Any, discrete: bool) -> tuple[Any, Any]:
    """Return the log-probabilities of actions, and the entropy."""
    if discrete:
        logs = jax.nn.log_softmax(outputs)
        return jnp.take_along_axis(logs, actions[:, None], -1)[:, 0], -(jnp.exp(logs) * logs).sum(-1)
    log_std = weights["log_std"]
    distance = (actions - outputs) / jnp.exp(log_std)
    logs = (-0.5 * distance**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)
    return logs, jnp.full(len(outputs), (log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum())


@jax.jit
def most_likely(policy: Any, seen: Any) -> Any:
    """Return the outputs of a policy: logits or means."""
    return forward(policy, seen, jnp.tanh)


@partial(jax.jit, static_argnums=3)
def drawn(weights: Any, seen: Any, key: Any, discrete: bool) -> tuple[Any, Any, Any]:
    """Return drawn actions, their log-probabilities, and values."""
    outputs = forward(weights["policy"], seen, jnp.tanh)
    if discrete:
        actions = jax.random.categorical(key, outputs)
    else:
        actions = outputs + jnp.exp(weights["log_std"]) * jax.random.normal(key, outputs.shape)
    logs, _ = log_probs(weights, outputs, actions, discrete)
    return actions, logs, forward(weights["value"], seen, jnp.tanh)[:, 0]


@partial(jax.jit, static_argnames=("task", "discrete"))
def learned(
    weights: Any, moments: Any, rollout: Any, last: Any, key: Any, *, task: Task, discrete: bool
) -> tuple[Any, Any]:
    """Return weights and moments after a round."""
    seen, actions, before, values, rewards, ends = rollout
    after = forward(weights["value"], last, jnp.tanh)[:, 0]

    def back(ahead: Any, own: Any) -> tuple[Any, Any]:
        advantage, next_value = ahead
        value, reward, end = own
        change = reward + task.gamma * next_value * (1 - end) - value
        advantage = change + task.gamma * task.gae_lambda * (1 - end) * advantage
        return (advantage, value), advantage

    _, advantages = jax.lax.scan(back, (jnp.zeros_like(after), after), (values, rewards, ends), reverse=True)
    samples = rewards.size
    parts = (seen, actions, before, advantages, advantages + values)
    flat = jax.tree.map(lambda part: part.reshape(samples, *part.shape[2:]), parts)

    def loss_of(weights: Any, batch: Any) -> Any:
        seen, actions, before, advantages, returns = batch
        logs, entropy = log_probs(weights, forward(weights["policy"], seen, jnp.tanh), actions, discrete)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = jnp.exp(logs - before)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages).mean()
        error = ((forward(weights["value"], seen, jnp.tanh)[:, 0] - returns) ** 2).mean()
        return 0.5 * error - gain - task.entropy * entropy.mean()

    def update(state: Any, places: Any) -> tuple[Any, None]:
        gradient = jax.grad(loss_of)(state[0], jax.tree.map(lambda part: part[places], flat))
        return adam(state[0], gradient, state[1], task.lr, 0.5), None

    size = samples // task.minibatches
    orders = jax.vmap(partial(jax.random.permutation, x=samples))(jax.random.split(key, task.passes))
    places = orders[:, : size * task.minibatches].reshape(-1, size)
    return jax.lax.scan(update, (weights, moments), places)[0]


def network(key: Any, sizes: tuple[int, ...], gain: float) -> Any:
    """Return orthogonal weights and zero biases; `gain` is that of the last layer."""
    keys, gains = jax.random.split(key, len(sizes) - 1), [2**0.5] * (len(sizes) - 2) + [gain]
    return [
        (jax.nn.initializers.orthogonal(own)(key, (a, b)), jnp.zeros((1, b)))
        for key, own, a, b in zip(keys, gains, sizes[:-1], sizes[1:], strict=True)
    ]


def learn(task: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train on a task; return the curve of steps, CPU seconds and evaluated returns."""
    own = Task.of(task)
    make = partial(Together, own.name) if own.multi_agent else partial(Alone, own.name, own.repeat)
    worlds, judges = [make() for _ in range(own.worlds)], [make() for _ in range(EPISODES)]
    agents = worlds[0].spaces
    keys = jax.random.split(jax.random.key(seed), len(agents))
    learners = {name: Learner(own, *spaces, key) for (name, spaces), key in zip(agents.items(), keys, strict=True)}
    seen = stacked([world.reset(seed=1000 * seed + k) for k, world in enumerate(worlds)])
    for name, learner in learners.items():
        learner.compile(seen[name])
    rounds = max(EVALUATIONS, own.steps // (own.worlds * own.turns))
    curve: list[tuple[int, float, float]] = []
    seconds = 0.0
    for k in range(1, EVALUATIONS + 1):
        start = time.process_time()
        for _ in range(rounds * (k - 1) // EVALUATIONS, rounds * k // EVALUATIONS):
            seen = play_and_learn(own, learners, worlds, seen)
        seconds += time.process_time() - start
        steps = rounds * k // EVALUATIONS * own.worlds * own.turns
        curve.append((steps, seconds, evaluated(learners, judges, 10_000 + seed)))
    counts = {"env steps": curve[-1][0]}
    return {"counts": counts, "seconds": seconds, "curve": curve}


def play_and_learn(task: Task, learners: dict[str, Learner], worlds: list[Any], seen: Any) -> Any:
    """Play a rollout and learn from it; return the observations after it."""
    rows: dict[str, list[Any]] = {name: [] for name in learners}
    for _ in range(task.turns):
        acts = {name: own.act(seen[name]) for name, own in learners.items()}
        allowed = {name: learners[name].allowed(acts[name][0]) for name in learners}
        results = [world.step({name: allowed[name][w] for name in learners}) for w, world in enumerate(worlds)]
        ends = np.array([end for _, _, end in results], np.float32)
        for name, (actions, logs, values) in acts.items():
            rewards = np.array([rewards[name] for _, rewards, _ in results], np.float32)
            rows[name].append((seen[name], actions, logs, values, rewards, ends))
        seen = stacked([world.reset() if end else now for world, (now, _, end) in zip(worlds, results, strict=True)])
    for name, own in learners.items():
        own.learn(tuple(np.stack(column) for column in zip(*rows[name], strict=True)), seen[name])
    return seen


def stacked(observations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the observations of all worlds, by agent."""
    return {
        name: np.stack([np.asarray(own[name], np.float32).reshape(-1) for own in observations])
        for name in observations[0]
    }


def evaluated(learners: dict[str, Learner], judges: list[Any], seed: int) -> float:
    """Return the mean return, over agents and one episode in each world, of the most likely actions."""
    seen, total = [judge.reset(seed=seed + k) for k, judge in enumerate(judges)], 0.0
    playing = list(range(len(judges)))
    while playing:
        now = stacked(seen)
        actions = {name: own.best(now[name]) for name, own in learners.items()}
        for w in list(playing):
            seen[w], rewards, end = judges[w].step({name: own[w] for name, own in actions.items()})
            total += sum(rewards.values()) / len(learners)
            if end:
                playing.remove(w)
                seen[w] = judges[w].reset()  # its rows are computed with the others and not used
    return total / len(judges)


if __name__ == "__main__":
    serve({"learn": learn}, f"jax {jax.__version__}")
