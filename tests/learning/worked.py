"""Learners worked out in plain float64 numpy: one agent, no torch, no stacks, gradients by differences.

Nothing here is shared with the package except the names of a network's layers: draws come from numpy's Philox by the
written address, and every loss is a function of a dict of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Named = dict[str, Floats]
STEP = 1e-6


def named(network: Any, row: Any) -> Named:
    """The layers of one (P,) row by name."""
    views = network.bind(row[None].clone())
    return {name: view[0].double().numpy().copy() for name, view in zip(network.layout.names, views, strict=True)}


def philox(seed: int, purpose: int, agent: int, *, epoch: int = 0, turn: int = 0) -> np.random.Generator:
    """A generator at an address, by the formula of the design."""
    key = seed + (((purpose << 32) + agent) << 64)
    return np.random.Generator(np.random.Philox(key=key, counter=(epoch << 128) + (turn << 64)))


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0.0)


def sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-x))


def huber(errors: Floats) -> Floats:
    size = np.abs(errors)
    return np.where(size <= 1.0, 0.5 * size**2, size - 0.5)


def dense(own: Named, name: str, x: Floats) -> Floats:
    """x (…, in) through the layer `name.weight`, `name.bias`, or `weight3`, `bias3` for `name` = "3"."""
    weight, bias = (f"{name}.weight", f"{name}.bias") if f"{name}.weight" in own else (f"weight{name}", f"bias{name}")
    return x @ own[weight].T + own[bias][0]


class Learner:
    """One agent's weights, moments and targets, and its steps."""

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
        """One update; its loss and the norm of its gradient before it was clipped."""
        found = loss(self.online)
        slopes = gradient(loss, self.online)
        norm = float(np.sqrt(sum((slope**2).sum() for slope in slopes.values())))
        factor = min(1.0, self.hyper["clip"] / norm)
        rate = self.rate()
        self.updates += 1
        for name, slope in slopes.items():
            clipped = factor * slope
            self.first[name] = 0.9 * self.first[name] + 0.1 * clipped
            self.second[name] = 0.999 * self.second[name] + 0.001 * clipped**2
            mean = self.first[name] / (1.0 - 0.9**self.updates)
            size = np.sqrt(self.second[name] / (1.0 - 0.999**self.updates))
            self.online[name] = self.online[name] - rate * mean / (size + 1e-8)
        for name in self.target:
            tau = self.hyper["tau"]
            self.target[name] = (1.0 - tau) * self.target[name] + tau * self.online[name]
        return found, norm


def gradient(loss: Callable[[Named], float], at: Named) -> Named:
    """Central differences."""
    slopes = {}
    for name, array in at.items():
        slope = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for side in (STEP, -STEP):
                moved = array.copy()
                moved[place] += side
                ends.append(loss({**at, name: moved}))
            slope[place] = (ends[0] - ends[1]) / (2.0 * STEP)
        slopes[name] = slope
    return slopes


# -- networks -------------------------------------------------------------------------------------------------


def mlp(own: Named, x: Floats, layers: int, activation: Callable[[Floats], Floats], head: str = "") -> Floats:
    for index in range(layers):
        x = x @ own[f"{head}weight{index}"].T + own[f"{head}bias{index}"][0]
        x = activation(x) if index < layers - 1 else x
    return x


def quantile_values(own: Named, x: Floats, quantiles: Floats, noise: Floats) -> Floats:
    """x (B, in), quantiles (B, K), noise (S,) -> (B, K, A)."""
    shaped = np.sign(noise) * np.sqrt(np.abs(noise))
    noisy: dict[str, tuple[Floats, Floats]] = {}
    at = 0
    for name in ("joined", "head"):
        outs, ins = own[f"{name}.weight.mean"].shape
        inner, outer = shaped[at : at + ins], shaped[at + ins : at + ins + outs]
        at += ins + outs
        noisy[name] = (
            own[f"{name}.weight.mean"] + own[f"{name}.weight.deviation"] * np.outer(outer, inner),
            own[f"{name}.bias.mean"][0] + own[f"{name}.bias.deviation"][0] * outer,
        )
    seen = relu(dense(own, "seen", x))
    waves = np.cos(np.pi * np.arange(1, 65) * quantiles[..., None])
    joined = seen[:, None, :] * relu(dense(own, "cosines", waves))
    hidden = relu(joined @ noisy["joined"][0].T + noisy["joined"][1])
    head = hidden @ noisy["head"][0].T + noisy["head"][1]
    value, advantage = head[..., :1], head[..., 1:]
    return value + advantage - advantage.mean(-1, keepdims=True)


def unrolled(own: Named, seen: Floats, state: Floats) -> Floats:
    """seen (S, T, in), state (S, H) -> (S, T, A): a gated recurrent unit (Cho et al. 2014), then a linear head."""
    outputs, size = [], state.shape[-1]
    for turn in range(seen.shape[1]):
        entering = dense(own, "unit.inputs", seen[:, turn])
        carried = dense(own, "unit.state", state)
        reset = sigmoid(entering[:, :size] + carried[:, :size])
        keep = sigmoid(entering[:, size : 2 * size] + carried[:, size : 2 * size])
        new = np.tanh(entering[:, 2 * size :] + reset * carried[:, 2 * size :])
        state = keep * state + (1.0 - keep) * new
        outputs.append(state @ own["head.weight0"].T + own["head.bias0"][0])
    return np.stack(outputs, 1)


# -- losses ---------------------------------------------------------------------------------------------------


def dqn_goals(online: Named, target: Named, batch: Mapping[str, Floats], *, double: bool) -> Floats:
    after = mlp(target, batch["next_states"], 2, relu)
    chooser = mlp(online, batch["next_states"], 2, relu) if double else after
    best = chooser.argmax(-1)
    return batch["returns"] + batch["discounts"] * after[np.arange(len(best)), best]


def dqn_loss(own: Named, goals: Floats, batch: Mapping[str, Any]) -> float:
    values = mlp(own, batch["states"], 2, relu)[np.arange(len(goals)), batch["actions"]]
    return float(np.mean(batch["weights"] * huber(values - goals)))


def iqn_goals(online: Named, target: Named, batch: Mapping[str, Any], *, double: bool) -> tuple[Floats, Any]:
    """(B, J) what each quantile should be, and the (B,) actions whose values they are made of."""
    ahead = batch["next_states"], batch["next_quantiles"], batch["next_noise"]
    after = quantile_values(target, *ahead)
    best = (quantile_values(online, *ahead) if double else after).mean(1).argmax(-1)
    kept = after[np.arange(len(best)), :, best]
    return batch["returns"][:, None] + batch["discounts"][:, None] * kept, best


def iqn_loss(own: Named, goals: Floats, batch: Mapping[str, Any]) -> float:
    every = quantile_values(own, batch["states"], batch["quantiles"], batch["noise"])
    values = every[np.arange(len(goals)), :, batch["actions"]]
    errors = goals[:, None, :] - values[:, :, None]  # (B, K, J): every quantile against every target
    losses = (np.abs(batch["quantiles"][:, :, None] - (errors < 0)) * huber(errors)).mean(-1).sum(-1)
    return float(np.mean(batch["weights"] * losses))


def recurrent_goals(online: Named, target: Named, batch: Mapping[str, Any], *, double: bool) -> Floats:
    after = unrolled(target, batch["states"], batch["hidden"])
    best = (unrolled(online, batch["states"], batch["hidden"]) if double else after).argmax(-1)
    goals = np.zeros(batch["returns"].shape)
    for s, t in np.ndindex(goals.shape):
        u = batch["ahead"][s, t]
        goals[s, t] = batch["returns"][s, t] + batch["discounts"][s, t] * after[s, u, best[s, u]]
    return goals


def recurrent_loss(own: Named, goals: Floats, batch: Mapping[str, Any]) -> float:
    """The mean over the turns that count; padding is none."""
    values = unrolled(own, batch["states"], batch["hidden"])
    counted = [place for place in np.ndindex(goals.shape) if batch["counted"][place]]
    return float(np.mean([huber(values[s, t, batch["actions"][s, t]] - goals[s, t]) for s, t in counted]))


def ppo_loss(own: Named, batch: Mapping[str, Any], hyper: Mapping[str, float]) -> float:
    """Each sample's terms times its weight, which is 1 / B where all count alike."""
    logits = mlp(own, batch["observations"], 2, np.tanh, "policy.")
    value = mlp(own, batch["observations"], 2, np.tanh, "value.")[:, 0]
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = log_probs[np.arange(len(value)), batch["actions"]]
    ratio = np.exp(chosen - batch["log_prob"])
    bound = hyper["ratio_clip"]
    surrogate = np.minimum(ratio * batch["rise"], np.clip(ratio, 1.0 - bound, 1.0 + bound) * batch["rise"])
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)
    error = (value - batch["returns"]) ** 2
    return float((batch["weights"] * (-surrogate + hyper["value_weight"] * error - hyper["entropy"] * entropy)).sum())


def advantages(columns: Mapping[str, Any], gamma: float, lam: float) -> Floats:
    """(T, W), from T + 1 rows of values: generalised advantage estimation backwards through each world."""
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
