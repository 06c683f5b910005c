"""Rounds of N independent double-DQN learners in JAX, run by the Python of JAX's own environment.

One line of JSON asks, one answers: `{"agents": 8, "sizes": [8, 64, 64, 4], "batch": 64, "updates": 32}` trains every
agent for a round from given samples. `vmap` over agents, `scan` over updates, one jitted call with donated states; with
two devices (the first argument) each computes half of the agents. Answers what it did and the seconds of the call. Ends
with its input.
"""

import json
import os
import sys
import time
from functools import cache, partial
from itertools import pairwise
from typing import Any

DEVICES = int(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} --xla_cpu_multi_thread_eigen=false"
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:DEVICES])

import jax  # noqa: E402 - reads the environment
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

CLIP, RATE, TAU = 10.0, 1e-3, 0.01


def forward(weights: Any, x: Any) -> Any:
    for index, (weight, bias) in enumerate(weights):
        x = x @ weight + bias
        x = jax.nn.relu(x) if index < len(weights) - 1 else x
    return x


def update(state: Any, batch: Any) -> tuple[Any, Any]:
    """One update of one agent: double-DQN loss (Huber), clip by the global norm, Adam, soft target."""
    online, target, first, second, step = state
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
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
    factor = jnp.minimum(1.0, CLIP / (norm + 1e-6))
    gradient = jax.tree.map(lambda g: g * factor, gradient)
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    one, two = 1.0 - 0.9**step, 1.0 - 0.999**step
    online = jax.tree.map(lambda p, m, v: p - RATE / one * m / (jnp.sqrt(v / two) + 1e-8), online, first, second)
    target = jax.tree.map(lambda t, p: t + TAU * (p - t), target, online)
    return (online, target, first, second, step), loss


def train(state: Any, batches: Any) -> tuple[Any, Any]:
    """A round: updates one after the other, all agents side by side."""
    return jax.lax.scan(jax.vmap(update), state, batches)


@cache
def prepared(agents: int, sizes: tuple[int, ...], batch: int, updates: int) -> tuple[Any, list[Any], Any]:
    """Return the compiled round, the states and the batches."""
    draws = np.random.default_rng(0)
    shape = (updates, agents, batch)
    batches = (
        draws.standard_normal((*shape, sizes[0]), np.float32),
        draws.standard_normal((*shape, sizes[0]), np.float32),
        draws.integers(0, sizes[-1], shape).astype(np.int32),
        draws.standard_normal(shape, np.float32),
        np.full(shape, 0.95, np.float32),
    )
    weights = [
        (
            draws.uniform(-1, 1, (agents, a, b)).astype(np.float32) / np.float32(np.sqrt(a)),
            np.zeros((agents, 1, b), np.float32),
        )
        for a, b in pairwise(sizes)
    ]
    zeros = jax.tree.map(np.zeros_like, weights)
    state = (weights, weights, zeros, zeros, np.zeros(agents, np.float32))
    if DEVICES == 1:
        return jax.jit(train, donate_argnums=0), [jax.tree.map(jnp.array, state)], jax.tree.map(jnp.array, batches)
    half = agents // DEVICES
    split = jax.tree.map(lambda x: x.reshape(DEVICES, half, *x.shape[1:]), state)
    cut = jax.tree.map(
        lambda x: np.ascontiguousarray(x.reshape(updates, DEVICES, half, *x.shape[2:]).swapaxes(0, 1)), batches
    )
    run = jax.pmap(train, donate_argnums=0)
    return run, [jax.tree.map(jnp.array, split)], jax.tree.map(jnp.array, cut)


def answer(agents: int, sizes: list[int], batch: int, updates: int) -> dict[str, Any]:
    run, states, batches = prepared(agents, tuple(sizes), batch, updates)
    start = time.perf_counter()
    states[0], losses = run(states[0], batches)
    jax.block_until_ready((states[0], losses))
    seconds = time.perf_counter() - start
    assert np.isfinite(np.asarray(losses)).all()
    return {
        "counts": {"updates": agents * updates, "samples": agents * updates * batch},
        "seconds": seconds,
        "jax": jax.__version__,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(partial(answer, **json.loads(line))()), flush=True)
