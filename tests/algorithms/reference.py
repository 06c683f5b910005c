"""Reference learners in plain float64 numpy: one agent, no torch, no stacks, gradients by differences.

Nothing here is shared with the package except the names of a network's layers: draws come from numpy's Philox at the
documented address, and every loss is a function of a dict of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Named = dict[str, Floats]
STEP = 1e-6


def layers_by_name(network: Any, row: Any) -> Named:
    """Return the layers of one (P,) row by name."""
    views = network.bind(row[None].clone())
    return {name: view[0].double().numpy().copy() for name, view in zip(network.layout.names, views, strict=True)}


def philox(seed: int, purpose: int, agent: int, *, epoch: int = 0, turn: int = 0) -> np.random.Generator:
    """Return the generator of an address, by the documented formula."""
    key = seed + (((purpose << 32) + agent) << 64)
    return np.random.Generator(np.random.Philox(key=key, counter=(epoch << 128) + (turn << 64)))


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0.0)


def sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-x))


def huber(errors: Floats) -> Floats:
    size = np.abs(errors)
    return np.where(size <= 1.0, 0.5 * size**2, size - 0.5)


def dense(layers: Named, name: str, x: Floats) -> Floats:
    """x (…, in) through the layer `name.weight`, `name.bias`, or `weight3`, `bias3` for `name` = "3"."""
    weight, bias = (
        (f"{name}.weight", f"{name}.bias") if f"{name}.weight" in layers else (f"weight{name}", f"bias{name}")
    )
    return x @ layers[weight].T + layers[bias][0]


class ReferenceLearner:
    """One agent's weights, moments and target weights, and its updates."""

    def __init__(self, online: Named, target: Named, hyper: Mapping[str, float]) -> None:
        self.online, self.target, self.hyper = online, target, hyper
        self.first = {name: np.zeros_like(array) for name, array in online.items()}
        self.second = {name: np.zeros_like(array) for name, array in online.items()}
        self.updates = 0

    def rate(self) -> float:
        span = self.hyper["lr_updates"]
        share = min(1.0, self.updates / span) if span else 0.0
        return self.hyper["lr"] + (self.hyper["lr_final"] - self.hyper["lr"]) * share

    def step(self, loss: Callable[[Named], float]) -> tuple[float, float]:
        """Take one update; return its loss and the norm of its gradient before clipping."""
        value = loss(self.online)
        gradients = gradient(loss, self.online)
        norm = float(np.sqrt(sum((derivative**2).sum() for derivative in gradients.values())))
        factor = min(1.0, self.hyper["clip"] / norm)
        rate = self.rate()
        self.updates += 1
        for name, derivative in gradients.items():
            clipped = factor * derivative
            self.first[name] = 0.9 * self.first[name] + 0.1 * clipped
            self.second[name] = 0.999 * self.second[name] + 0.001 * clipped**2
            mean = self.first[name] / (1.0 - 0.9**self.updates)
            size = np.sqrt(self.second[name] / (1.0 - 0.999**self.updates))
            self.online[name] = self.online[name] - rate * mean / (size + 1e-8)
        for name in self.target:
            tau = self.hyper["tau"]
            self.target[name] = (1.0 - tau) * self.target[name] + tau * self.online[name]
        return value, norm


def gradient(loss: Callable[[Named], float], at: Named) -> Named:
    """Return central differences."""
    gradients = {}
    for name, array in at.items():
        derivative = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for side in (STEP, -STEP):
                moved = array.copy()
                moved[place] += side
                ends.append(loss({**at, name: moved}))
            derivative[place] = (ends[0] - ends[1]) / (2.0 * STEP)
        gradients[name] = derivative
    return gradients


# -- networks -------------------------------------------------------------------------------------------------


def mlp(layers: Named, x: Floats, count: int, activation: Callable[[Floats], Floats], head: str = "") -> Floats:
    for index in range(count):
        x = x @ layers[f"{head}weight{index}"].T + layers[f"{head}bias{index}"][0]
        x = activation(x) if index < count - 1 else x
    return x


def quantile_values(layers: Named, x: Floats, quantiles: Floats, noise: Floats) -> Floats:
    """x (B, in), quantiles (B, K), noise (S,) -> (B, K, A)."""
    shaped = np.sign(noise) * np.sqrt(np.abs(noise))
    noisy: dict[str, tuple[Floats, Floats]] = {}
    at = 0
    for name in ("joined", "head"):
        outs, ins = layers[f"{name}.weight.mean"].shape
        inner, outer = shaped[at : at + ins], shaped[at + ins : at + ins + outs]
        at += ins + outs
        noisy[name] = (
            layers[f"{name}.weight.mean"] + layers[f"{name}.weight.deviation"] * np.outer(outer, inner),
            layers[f"{name}.bias.mean"][0] + layers[f"{name}.bias.deviation"][0] * outer,
        )
    observed = relu(dense(layers, "seen", x))
    waves = np.cos(np.pi * np.arange(1, 65) * quantiles[..., None])
    joined = observed[:, None, :] * relu(dense(layers, "cosines", waves))
    hidden = relu(joined @ noisy["joined"][0].T + noisy["joined"][1])
    head = hidden @ noisy["head"][0].T + noisy["head"][1]
    value, advantage = head[..., :1], head[..., 1:]
    return value + advantage - advantage.mean(-1, keepdims=True)


def unroll(layers: Named, observations: Floats, state: Floats) -> Floats:
    """observations (S, T, in), state (S, H) -> (S, T, A): a gated recurrent unit (Cho et al. 2014), then a linear head."""
    outputs, size = [], state.shape[-1]
    for turn in range(observations.shape[1]):
        entering = dense(layers, "unit.inputs", observations[:, turn])
        carried = dense(layers, "unit.state", state)
        reset = sigmoid(entering[:, :size] + carried[:, :size])
        keep = sigmoid(entering[:, size : 2 * size] + carried[:, size : 2 * size])
        new = np.tanh(entering[:, 2 * size :] + reset * carried[:, 2 * size :])
        state = keep * state + (1.0 - keep) * new
        outputs.append(state @ layers["head.weight0"].T + layers["head.bias0"][0])
    return np.stack(outputs, 1)


# -- losses ---------------------------------------------------------------------------------------------------


def dqn_targets(online: Named, target: Named, batch: Mapping[str, Floats], *, double: bool) -> Floats:
    next_values = mlp(target, batch["next_states"], 2, relu)
    chooser = mlp(online, batch["next_states"], 2, relu) if double else next_values
    best = chooser.argmax(-1)
    return batch["returns"] + batch["discounts"] * next_values[np.arange(len(best)), best]


def dqn_loss(layers: Named, targets: Floats, batch: Mapping[str, Any]) -> float:
    values = mlp(layers, batch["states"], 2, relu)[np.arange(len(targets)), batch["actions"]]
    return float(np.mean(batch["weights"] * huber(values - targets)))


def iqn_targets(online: Named, target: Named, batch: Mapping[str, Any], *, double: bool) -> tuple[Floats, Any]:
    """Return the targets (B, J) of each quantile, and the (B,) actions whose values they use."""
    following = batch["next_states"], batch["next_quantiles"], batch["next_noise"]
    next_values = quantile_values(target, *following)
    best = (quantile_values(online, *following) if double else next_values).mean(1).argmax(-1)
    best_values = next_values[np.arange(len(best)), :, best]
    return batch["returns"][:, None] + batch["discounts"][:, None] * best_values, best


def iqn_loss(layers: Named, targets: Floats, batch: Mapping[str, Any]) -> float:
    every = quantile_values(layers, batch["states"], batch["quantiles"], batch["noise"])
    values = every[np.arange(len(targets)), :, batch["actions"]]
    errors = targets[:, None, :] - values[:, :, None]  # (B, K, J): every quantile against every target
    losses = (np.abs(batch["quantiles"][:, :, None] - (errors < 0)) * huber(errors)).mean(-1).sum(-1)
    return float(np.mean(batch["weights"] * losses))


def recurrent_targets(online: Named, target: Named, batch: Mapping[str, Any], *, double: bool) -> Floats:
    next_values = unroll(target, batch["states"], batch["hidden"])
    best = (unroll(online, batch["states"], batch["hidden"]) if double else next_values).argmax(-1)
    targets = np.zeros(batch["returns"].shape)
    for s, t in np.ndindex(targets.shape):
        u = batch["ahead"][s, t]
        targets[s, t] = batch["returns"][s, t] + batch["discounts"][s, t] * next_values[s, u, best[s, u]]
    return targets


def recurrent_loss(layers: Named, targets: Floats, batch: Mapping[str, Any]) -> float:
    """Return the mean over the turns that count; padding does not."""
    values = unroll(layers, batch["states"], batch["hidden"])
    counted = [place for place in np.ndindex(targets.shape) if batch["counted"][place]]
    return float(np.mean([huber(values[s, t, batch["actions"][s, t]] - targets[s, t]) for s, t in counted]))


def ppo_loss(layers: Named, batch: Mapping[str, Any], hyper: Mapping[str, float]) -> float:
    """Return the sum of each sample's terms times its weight, which is 1 / B where all samples count alike."""
    logits = mlp(layers, batch["observations"], 2, np.tanh, "policy.")
    value = mlp(layers, batch["observations"], 2, np.tanh, "value.")[:, 0]
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = log_probs[np.arange(len(value)), batch["actions"]]
    ratio = np.exp(chosen - batch["log_prob"])
    bound = hyper["ratio_clip"]
    surrogate = np.minimum(ratio * batch["advantages"], np.clip(ratio, 1.0 - bound, 1.0 + bound) * batch["advantages"])
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)
    error = (value - batch["returns"]) ** 2
    return float((batch["weights"] * (-surrogate + hyper["value_weight"] * error - hyper["entropy"] * entropy)).sum())


def advantages(columns: Mapping[str, Any], gamma: float, lam: float) -> Floats:
    """Return advantages (T, W) from T + 1 rows of values, backwards through each world."""
    turns, worlds = columns["rewards"].shape
    found = np.zeros((turns, worlds))
    for world in range(worlds):
        later = 0.0
        for turn in range(turns - 1, -1, -1):
            if not columns["valid"][turn, world]:
                later = 0.0
                continue
            over = columns["terminated"][turn, world]
            ahead = 0.0 if over else gamma * float(columns["value"][turn + 1, world])
            delta = float(columns["rewards"][turn, world]) + ahead - float(columns["value"][turn, world])
            ends = over or columns["truncated"][turn, world]
            later = delta + (0.0 if ends else gamma * lam * later)
            found[turn, world] = later
    return found
