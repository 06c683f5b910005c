"""N independent learners in JAX, run by the Python of JAX's own environment.

One line of JSON asks, one answers with what was done and the seconds of the call; it ends with its input. Everything is
one jitted call with donated states: `vmap` over agents, `scan` over updates, turns and epochs. With two devices (the
first argument) each computes half of the agents.

    {"what": "update", "agents": 8, "sizes": [8, 64, 64, 4], "batch": 64, "updates": 32}   rounds from given samples
    {"what": "loop", …, "turns": 128, "epochs": 20}   acting, a world, storing, sampling, and the same updates
    {"what": "ppo", "agents": 8, "worlds": 8, "turns": 128, "epochs": 20, …}   CartPole and PPO
"""

import json
import math
import os
import sys
import time
from functools import cache
from itertools import pairwise
from typing import Any

DEVICES = int(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} --xla_cpu_multi_thread_eigen=false"
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(sys.prefix, "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:DEVICES])

import jax  # noqa: E402 - reads the environment
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

TAU = 0.01


# -- networks and Adam -----------------------------------------------------------------------------------------------


def forward(weights: Any, x: Any, activation: Any = jax.nn.relu) -> Any:
    for index, (weight, bias) in enumerate(weights):
        x = x @ weight + bias
        x = activation(x) if index < len(weights) - 1 else x
    return x


def adam(weights: Any, gradient: Any, moments: Any, rate: float, clip: float) -> tuple[Any, Any]:
    """Clip by the global norm and take a step of Adam; moments: first, second, number of steps."""
    first, second, step = moments
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
    factor = jnp.minimum(1.0, clip / (norm + 1e-6))
    gradient = jax.tree.map(lambda g: g * factor, gradient)
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    one, two = 1.0 - 0.9**step, 1.0 - 0.999**step
    weights = jax.tree.map(lambda p, m, v: p - rate / one * m / (jnp.sqrt(v / two) + 1e-8), weights, first, second)
    return weights, (first, second, step)


def fresh(draws: Any, agents: int, sizes: tuple[int, ...]) -> Any:
    return [
        (
            draws.uniform(-1, 1, (agents, a, b)).astype(np.float32) / np.float32(np.sqrt(a)),
            np.zeros((agents, 1, b), np.float32),
        )
        for a, b in pairwise(sizes)
    ]


def with_moments(agents: int, weights: Any) -> tuple[Any, Any]:
    zeros = jax.tree.map(np.zeros_like, weights)
    return weights, (zeros, zeros, np.zeros(agents, np.float32))


# -- double DQN ------------------------------------------------------------------------------------------------------


def update(state: Any, batch: Any) -> tuple[Any, Any]:
    """One update of one agent: double-DQN loss (Huber), clip by the global norm, Adam, soft target."""
    online, moments, target = state
    states, next_states, actions, returns, discounts = batch
    best = forward(online, next_states).argmax(-1)
    after = jnp.take_along_axis(forward(target, next_states), best[:, None], -1)[:, 0]
    goals = returns + discounts * after

    def loss_of(weights: Any) -> Any:
        errors = jnp.take_along_axis(forward(weights, states), actions[:, None], -1)[:, 0] - goals
        size = jnp.abs(errors)
        inner = jnp.minimum(size, 1.0)
        return jnp.mean(inner * (size - 0.5 * inner))

    loss, gradient = jax.value_and_grad(loss_of)(online)
    online, moments = adam(online, gradient, moments, 1e-3, 10.0)
    target = jax.tree.map(lambda t, p: t + TAU * (p - t), target, online)
    return (online, moments, target), loss


def updates_alone(agents: int, sizes: list[int], batch: int, updates: int) -> tuple[Any, Any, Any, Any]:
    """Rounds from given samples: the function, the states, what it reads, and the counts of a call."""
    draws, shape = np.random.default_rng(0), (DEVICES, updates, agents // DEVICES, batch)
    batches = (
        draws.standard_normal((*shape, sizes[0]), np.float32),
        draws.standard_normal((*shape, sizes[0]), np.float32),
        draws.integers(0, sizes[-1], shape).astype(np.int32),
        draws.standard_normal(shape, np.float32),
        np.full(shape, 0.95, np.float32),
    )

    def train(state: Any, batches: Any) -> tuple[Any, Any]:
        return jax.lax.scan(jax.vmap(update), state, batches)

    weights = fresh(draws, agents, tuple(sizes))
    state = (*with_moments(agents, weights), weights)
    return train, state, batches, {"updates": agents * updates, "samples": agents * updates * batch}


def whole_loop(
    agents: int, sizes: list[int], batch: int, updates: int, turns: int, epochs: int, rows: int
) -> tuple[Any, Any, Any, Any]:
    """Epochs of turns, each followed by a round. The world and the buffer are those of `benchmarks/drift.py`."""
    draws, inputs, actions = np.random.default_rng(0), sizes[0], sizes[-1]
    pushes = jnp.array(np.sin(np.arange(actions * inputs)).reshape(actions, inputs), jnp.float32)

    def turn(online: Any, x: Any, drawn: Any) -> tuple[Any, Any]:
        greedy = jax.vmap(forward)(online, x[:, None])[:, 0].argmax(-1)
        chosen = jnp.where(drawn[0] < 0.05, (drawn[1] * actions).astype(jnp.int32), greedy)
        after = 0.9 * x + pushes[chosen]
        return after, (x, after, chosen, -jnp.abs(after[:, 0]))

    def epoch(carry: Any, _: Any) -> tuple[Any, Any]:
        learners, x, rings, key, done = carry
        key, acting, sampling = jax.random.split(key[0], 3)
        own = len(x)
        x, taken = jax.lax.scan(
            lambda x, drawn: turn(learners[0], x, drawn), x, jax.random.uniform(acting, (turns, 2, own))
        )
        at = (done[0] * turns) % rows  # a whole number of epochs fits into the buffer
        rings = jax.tree.map(
            lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new.swapaxes(0, 1), at, 1), rings, taken
        )
        filled = jnp.minimum((done[0] + 1) * turns, rows)
        drawn = (jax.random.uniform(sampling, (updates, own, batch)) * filled).astype(jnp.int32)

        def learn(learners: Any, places: Any) -> tuple[Any, Any]:
            states, next_states, chosen, rewards = jax.tree.map(
                jax.vmap(lambda ring, at: ring[at]), rings, (places,) * 4
            )
            return jax.vmap(update)(learners, (states, next_states, chosen, rewards, jnp.full_like(rewards, 0.95)))

        learners, losses = jax.lax.scan(learn, learners, drawn)
        return (learners, x, rings, key[None], done + 1), losses.mean(0)

    def run(carry: Any, _: Any) -> tuple[Any, Any]:
        return jax.lax.scan(epoch, carry, None, length=epochs)

    weights = fresh(draws, agents, tuple(sizes))
    rings = (
        np.zeros((agents, rows, inputs), np.float32),
        np.zeros((agents, rows, inputs), np.float32),
        np.zeros((agents, rows), np.int32),
        np.zeros((agents, rows), np.float32),
    )
    keys = np.arange(2 * DEVICES, dtype=np.uint32).reshape(DEVICES, 2)
    state = ((*with_moments(agents, weights), weights), np.zeros((agents, inputs), np.float32), rings)
    counts = {"turns": turns * epochs, "updates": agents * updates * epochs}
    return run, (*state, keys, np.zeros(DEVICES, np.int32)), np.zeros(DEVICES), counts


# -- PPO -------------------------------------------------------------------------------------------------------------


def cartpole(state: Any, action: Any) -> tuple[Any, Any]:
    """Return the next state (4,) of Gymnasium's CartPole-v1, and whether it has failed."""
    x, x_dot, theta, theta_dot = state
    force, sine, cosine = jnp.where(action == 1, 10.0, -10.0), jnp.sin(theta), jnp.cos(theta)
    temp = (force + 0.05 * theta_dot**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    push = temp - 0.05 * turn * cosine / 1.1
    state = jnp.stack([x + 0.02 * x_dot, x_dot + 0.02 * push, theta + 0.02 * theta_dot, theta_dot + 0.02 * turn])
    return state, (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * 2 * math.pi / 360)


def ppo(
    agents: int, hidden: list[int], worlds: int, turns: int, epochs: int, passes: int, minibatches: int
) -> tuple[Any, Any, Any, Any]:
    """Epochs of CartPole with a round of PPO after each: policy and value networks apart, tanh, GAE, clipping."""
    draws, samples = np.random.default_rng(0), turns * worlds

    def both(weights: Any, x: Any) -> tuple[Any, Any]:
        policy, value = weights
        return jax.nn.log_softmax(forward(policy, x, jnp.tanh)), forward(value, x, jnp.tanh)[:, 0]

    def turn(weights: Any, carry: Any, drawn: Any) -> tuple[Any, Any]:
        states, steps = carry
        log_probs, values = both(weights, states)
        actions = (drawn[:, 0] > jnp.exp(log_probs[:, 0])).astype(jnp.int32)
        after, failed = jax.vmap(cartpole)(states, actions)
        steps = steps + 1
        ended = failed | (steps >= 500)
        begun = jnp.where(ended[:, None], 0.1 * drawn[:, 1:] - 0.05, after)
        taken = (states, actions, jnp.take_along_axis(log_probs, actions[:, None], -1)[:, 0], values, ended)
        return (begun, jnp.where(ended, 0, steps)), taken

    def loss_of(weights: Any, batch: Any) -> Any:
        states, actions, before, advantages, returns = batch
        log_probs, values = both(weights, states)
        ratio = jnp.exp(jnp.take_along_axis(log_probs, actions[:, None], -1)[:, 0] - before)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages).mean()
        return 0.5 * ((values - returns) ** 2).mean() - gain

    def round_of(weights: Any, moments: Any, carry: Any, drawn: Any, orders: Any) -> tuple[Any, Any, Any, Any]:
        """One agent: its turns in its worlds, then its updates."""
        carry, (states, actions, before, values, ended) = jax.lax.scan(
            lambda carry, drawn: turn(weights, carry, drawn), carry, drawn
        )
        last = both(weights, carry[0])[1]

        def back(ahead: Any, own: Any) -> tuple[Any, Any]:
            advantage, next_value = ahead
            value, over = own
            going = 1.0 - over
            advantage = 1.0 + 0.99 * next_value * going - value + 0.99 * 0.95 * going * advantage
            return (advantage, value), advantage

        _, advantages = jax.lax.scan(back, (jnp.zeros_like(last), last), (values, ended), reverse=True)
        flat = jax.tree.map(
            lambda x: x.reshape(samples, *x.shape[2:]), (states, actions, before, advantages, advantages + values)
        )

        def learn(state: Any, places: Any) -> tuple[Any, Any]:
            weights, moments = state
            loss, gradient = jax.value_and_grad(loss_of)(weights, jax.tree.map(lambda x: x[places], flat))
            return adam(weights, gradient, moments, 3e-4, 0.5), loss

        places = jnp.argsort(orders, axis=-1).reshape(passes * minibatches, -1)
        (weights, moments), losses = jax.lax.scan(learn, (weights, moments), places)
        return weights, moments, carry, losses.mean()

    def epoch(carry: Any, _: Any) -> tuple[Any, Any]:
        (weights, moments), worlds_of, key = carry
        own = len(worlds_of[1])
        key, playing, ordering = jax.random.split(key[0], 3)
        drawn = jax.random.uniform(playing, (own, turns, worlds, 5))
        orders = jax.random.uniform(ordering, (own, passes, samples))
        weights, moments, worlds_of, losses = jax.vmap(round_of)(weights, moments, worlds_of, drawn, orders)
        return ((weights, moments), worlds_of, key[None]), losses

    def run(carry: Any, _: Any) -> tuple[Any, Any]:
        return jax.lax.scan(epoch, carry, None, length=epochs)

    weights = (fresh(draws, agents, (4, *hidden, 2)), fresh(draws, agents, (4, *hidden, 1)))
    worlds_of = (
        draws.uniform(-0.05, 0.05, (agents, worlds, 4)).astype(np.float32),
        np.zeros((agents, worlds), np.int32),
    )
    keys = np.arange(2 * DEVICES, dtype=np.uint32).reshape(DEVICES, 2)
    counts = {"turns": turns * epochs, "updates": agents * passes * minibatches * epochs}
    return run, (with_moments(agents, weights), worlds_of, keys), np.zeros(DEVICES), counts


# -- answering -------------------------------------------------------------------------------------------------------

WORK = {"update": updates_alone, "loop": whole_loop, "ppo": ppo}


@cache
def prepared(asked: str) -> tuple[Any, list[Any], Any, Any]:
    """Return the function, compiled, the states, what it reads beside them, and the counts of a call."""
    options = json.loads(asked)
    function, state, beside, counts = WORK[options.pop("what")](**options)
    if DEVICES == 1:
        run, beside = jax.jit(function, donate_argnums=0), jax.tree.map(lambda x: x[0], beside)
    else:
        run = jax.pmap(function, donate_argnums=0)
        state = jax.tree.map(lambda x: x.reshape(DEVICES, len(x) // DEVICES, *x.shape[1:]), state)
    state, beside = jax.tree.map(jnp.array, (state, beside))
    for _ in range(2):  # the states that the first call returns are placed otherwise, which compiles a second time
        state, _ = run(state, beside)
    return run, [jax.block_until_ready(state)], beside, counts


def answer(asked: str) -> dict[str, Any]:
    run, states, beside, counts = prepared(asked)
    start = time.perf_counter()
    states[0], losses = run(states[0], beside)
    jax.block_until_ready((states[0], losses))
    seconds = time.perf_counter() - start
    assert np.isfinite(np.asarray(losses)).all()
    return {"counts": counts, "seconds": seconds, "jax": jax.__version__}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(line)), flush=True)
