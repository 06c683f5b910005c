"""Gymnasium's CartPole and Acrobot as compiled worlds: the same dynamics and the same starts, in float64.

An episode starts from the seed that Gymnasium would get, through numpy's SeedSequence and PCG64, so its first state is
Gymnasium's, bit for bit. A step is Gymnasium's formula in Gymnasium's order. Only sine and cosine are computed here,
from fused multiply-adds, so that the bytes are the same on every machine; numpy's depend on the CPU. From the same
state, a step therefore agrees with Gymnasium's to about 1e-15, and rewards, ends and time limits are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.seeding import Purpose, draw, high_product, key
from parallel_agents.core.types import Array
from parallel_agents.engine.collect import CompiledWorld, nothing_moves
from parallel_agents.env.adapters.sync_envs import Episode, MakeAdapter, SyncEnvs
from parallel_agents.kernels.intrinsics import fma

CARTPOLE, ACROBOT = 0, 1
NAMES = {"CartPole-v1": CARTPOLE, "Acrobot-v1": ACROBOT}


class ClassicWorld(NamedTuple):
    """The state of W worlds."""

    kind: int
    limit: int
    """Steps of an episode, at most."""
    key: NDArray[np.uint64]
    """(2,) the random key of the environment."""
    state: NDArray[np.float64]
    """(W, 4)"""
    steps: NDArray[np.int64]
    """(W,) steps of the episode so far."""
    seeds: NDArray[np.int64]
    """(W,) seed of the episode; -1: none has begun."""
    history: NDArray[np.int8]
    """(W, limit) actions of the episode."""
    observations: NDArray[np.float32]
    """(W, D); rewards and ends (W, 1): the buffers that every adapted environment has."""
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class ClassicEnvs(SyncEnvs):
    """W worlds of CartPole or Acrobot, stepped by compiled code."""

    def __init__(self, name: str, make: MakeAdapter, n_worlds: int, *, seed: int = 0) -> None:
        self._kind = NAMES[name]
        super().__init__(make, n_worlds, seed=seed)
        buffers, limit = self.buffers, self.max_episode_steps or 500
        self.world = ClassicWorld(
            kind=self._kind,
            limit=limit,
            key=np.zeros(2, np.uint64),
            state=np.zeros((n_worlds, 4)),
            steps=np.zeros(n_worlds, np.int64),
            seeds=np.full(n_worlds, -1),
            history=np.zeros((n_worlds, limit), np.int8),
            observations=buffers["observations"],
            rewards=buffers["rewards"],
            terminated=buffers["terminated"],
            truncated=buffers["truncated"],
        )
        buffers["can_act"][:] = True

    def _open(self, make: MakeAdapter) -> None:
        """Make one environment for its spaces and its time limit."""
        worlds, self.n_worlds = self.n_worlds, 1
        super()._open(make)
        super().close()
        self.n_worlds = worlds
        self.buffers = type(self.buffers)(self.agents, worlds)

    def replay(self, episodes: Mapping[int, Episode]) -> None:
        """Replay the episode of each of some worlds, up to its last action."""
        for world, episode in episodes.items():
            start(self.world, world, episode.seed)
            for action in episode.actions:
                step(self.world, world, int(action[0]))

    def advance(self, worlds: Sequence[int]) -> None:
        """Take one step in each of some worlds, with the actions in the buffers."""
        actions = self.buffers["actions"]
        for world in worlds:
            step(self.world, world, int(actions[world, 0]))

    def stored_episodes(self) -> list[Episode]:
        """Return the seed and the actions of every world's episode."""
        world = self.world
        counts = zip(world.seeds.tolist(), world.history, world.steps.tolist(), strict=True)
        return [Episode(seed, [np.array([float(a)]) for a in own[:count]]) for seed, own, count in counts]

    def compiled(self, seed: int) -> CompiledWorld:
        """Return the worlds for compiled epochs of an environment with this seed."""
        self.world.key[:] = key(seed, Purpose.WORLD)
        return CompiledWorld(self.world, reset, nothing_moves, observe, apply)


# -- compiled --------------------------------------------------------------------------------------------------------


@compiled_once
def reset(world: ClassicWorld, which: NDArray[np.bool_], epoch: int, turn: int) -> None:
    """Start episodes in the worlds of a mask, from the seeds that `AdaptedEnvironment.reset_worlds` draws."""
    for w in range(len(which)):
        if which[w]:
            words = draw(world.key[0], world.key[1], np.uint64(0), np.uint64(turn), np.uint64(epoch), np.uint64(w))
            start(world, w, np.int64((words[0] & np.uint64(0xFFFFFFFF)) >> np.uint64(1)))  # integers(2**31)


@compiled_once
def observe(world: ClassicWorld, out: NDArray[np.float32]) -> None:
    """Write the observations (1, W, D)."""
    for w in range(out.shape[1]):
        for d in range(out.shape[2]):
            out[0, w, d] = world.observations[w, d]


@compiled_once
def apply(
    world: ClassicWorld,
    actions: Array,
    acting: NDArray[np.bool_],
    active: NDArray[np.bool_],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    epoch: int,
    turn: int,
) -> int:
    """Take one step in every active world."""
    for w in range(len(active)):
        if active[w]:
            step(world, w, np.int64(actions[0, w, 0]))
            rewards[0, w] = world.rewards[w, 0]
        terminated[0, w], truncated[0, w] = world.terminated[w, 0], world.truncated[w, 0]
    return -1


@compiled_once
def start(world: ClassicWorld, w: int, seed: int) -> None:
    """Start an episode in one world: four uniform numbers of numpy's generator with this seed."""
    high = 0.05 if world.kind == CARTPOLE else 0.1
    draw_pcg64(seed, world.state[w])
    for d in range(4):
        number = -high + (high - -high) * world.state[w, d]
        world.state[w, d] = number if world.kind == CARTPOLE else np.float64(np.float32(number))
    world.seeds[w], world.steps[w] = seed, 0
    world.rewards[w, 0], world.terminated[w, 0], world.truncated[w, 0] = 0.0, False, False
    _write_observation(world, w)


@compiled_once
def step(world: ClassicWorld, w: int, action: int) -> None:
    """Take one step in one world."""
    world.history[w, world.steps[w]] = action
    world.steps[w] += 1
    if world.kind == CARTPOLE:
        ended = _step_cartpole(world.state[w], action)
        reward = 1.0
    else:
        ended = _step_acrobot(world.state[w], action)
        reward = 0.0 if ended else -1.0
    world.rewards[w, 0], world.terminated[w, 0] = reward, ended
    world.truncated[w, 0] = world.steps[w] >= world.limit
    _write_observation(world, w)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _write_observation(world: ClassicWorld, w: int) -> None:
    state, out = world.state[w], world.observations[w]
    if world.kind == CARTPOLE:
        for d in range(4):
            out[d] = state[d]
        return
    out[1], out[0] = sin_cos(state[0])
    out[3], out[2] = sin_cos(state[1])
    out[4], out[5] = state[2], state[3]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _step_cartpole(state: NDArray[np.float64], action: int) -> bool:
    """Advance a cart with a pole by 0.02 s, by Euler's method; return whether it has failed."""
    gravity, masspole, length, tau = 9.8, 0.1, 0.5, 0.02
    total_mass = masspole + 1.0
    polemass_length = masspole * length
    x, x_dot, theta, theta_dot = state[0], state[1], state[2], state[3]
    force = 10.0 if action == 1 else -10.0
    sintheta, costheta = sin_cos(theta)
    temp = (force + polemass_length * (theta_dot * theta_dot) * sintheta) / total_mass
    thetaacc = (gravity * sintheta - costheta * temp) / (
        length * (4.0 / 3.0 - masspole * (costheta * costheta) / total_mass)
    )
    xacc = temp - polemass_length * thetaacc * costheta / total_mass
    state[0] = x = x + tau * x_dot
    state[1] = x_dot + tau * xacc
    state[2] = theta = theta + tau * theta_dot
    state[3] = theta_dot + tau * thetaacc
    limit = 12 * 2 * math.pi / 360
    return x < -2.4 or x > 2.4 or theta < -limit or theta > limit


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _slopes(
    theta1: float, theta2: float, dtheta1: float, dtheta2: float, torque: float
) -> tuple[float, float, float, float]:
    """Return the derivatives of an acrobot's state, by the book's equations; all lengths and masses are 1 or 0.5."""
    g = 9.8
    sin2, cos2 = sin_cos(theta2)
    d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0  # 2 * l1 * lc2 is 1
    d2 = (0.25 + 0.5 * cos2) + 1.0
    phi2 = 0.5 * g * sin_cos(theta1 + theta2 - math.pi / 2.0)[1]
    phi1 = (
        -0.5 * (dtheta2 * dtheta2) * sin2
        - 1.0 * dtheta2 * dtheta1 * sin2
        + 1.5 * g * sin_cos(theta1 - math.pi / 2)[1]
        + phi2
    )
    ddtheta2 = (torque + d2 / d1 * phi1 - 0.5 * (dtheta1 * dtheta1) * sin2 - phi2) / (1.25 - d2 * d2 / d1)
    ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
    return dtheta1, dtheta2, ddtheta1, ddtheta2


@compiled_once
def _step_acrobot(state: NDArray[np.float64], action: int) -> bool:
    """Advance two joined links by 0.2 s, by the method of Runge and Kutta; return whether the tip is high enough."""
    dt = 0.2
    torque, dt2 = action - 1.0, dt / 2.0
    a, b, c, d = state[0], state[1], state[2], state[3]
    k1 = _slopes(a, b, c, d, torque)
    k2 = _slopes(a + dt2 * k1[0], b + dt2 * k1[1], c + dt2 * k1[2], d + dt2 * k1[3], torque)
    k3 = _slopes(a + dt2 * k2[0], b + dt2 * k2[1], c + dt2 * k2[2], d + dt2 * k2[3], torque)
    k4 = _slopes(a + dt * k3[0], b + dt * k3[1], c + dt * k3[2], d + dt * k3[3], torque)
    for i in range(4):
        state[i] = state[i] + dt / 6.0 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i])
    for i in range(2):
        while state[i] > math.pi:
            state[i] -= math.pi - -math.pi
        while state[i] < -math.pi:
            state[i] += math.pi - -math.pi
        most = (4 + 5 * i) * math.pi
        state[2 + i] = min(max(state[2 + i], -most), most)
    return -sin_cos(state[0])[1] - sin_cos(state[1] + state[0])[1] > 1.0


_SINE = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(1, 9))
_COSINE = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(2, 10))
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
"""π / 2, and what is missing of it."""


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def sin_cos(x: float) -> tuple[float, float]:
    """Return sine and cosine, each with an error of less than 1 unit in its last place for |x| up to 1000."""
    quarter = np.rint(x / _HALF_PI[0])
    high = fma(-quarter, _HALF_PI[0], x)
    r = fma(-quarter, _HALF_PI[1], high)
    low = fma(-quarter, _HALF_PI[1], high - r)  # what r has lost
    square = r * r
    odd, even = _SINE[7], _COSINE[7]
    for n in range(6, -1, -1):
        odd, even = fma(odd, square, _SINE[n]), fma(even, square, _COSINE[n])
    sine = r + fma(odd * square, r, low)
    half = 0.5 * square
    rest = 1.0 - half
    cosine = rest + (((1.0 - rest) - half) + fma(even * square, square, -r * low))
    turn = int(quarter) % 4
    if turn == 1:
        return cosine, -sine
    if turn == 2:
        return -sine, -cosine
    if turn == 3:
        return -cosine, sine
    return sine, cosine


_MASK = np.uint64(0xFFFFFFFF)
_MULTIPLIER_HIGH, _MULTIPLIER_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _hashed(value: np.uint64, constant: np.uint64, multiplier: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a hash of 32 bits, and the next constant."""
    value = (value ^ constant) & _MASK
    constant = (constant * multiplier) & _MASK
    value = (value * constant) & _MASK
    return value ^ (value >> np.uint64(16)), constant


@compiled_once(allocates=True)
def draw_pcg64(seed: int, out: NDArray[np.float64]) -> None:
    """Write the first numbers of `numpy.random.Generator(PCG64(SeedSequence(seed))).random()`; seed: 32 bits.

    SeedSequence hashes the seed to four words (O'Neill 2015, "Simple, portable C++ seed entropy"); PCG64 is a linear
    congruential generator of 128 bits (O'Neill 2014). Both are numpy's, whose streams never change.
    """
    pool = np.zeros(4, np.uint64)
    pool[0] = np.uint64(seed)
    constant = np.uint64(0x43B0D7E5)
    for i in range(4):
        pool[i], constant = _hashed(pool[i], constant, np.uint64(0x931E8875))
    for source in range(4):
        for target in range(4):
            if source != target:
                value, constant = _hashed(pool[source], constant, np.uint64(0x931E8875))
                mixed = (np.uint64(0xCA01F9DD) * pool[target] - np.uint64(0x4973F715) * value) & _MASK
                pool[target] = mixed ^ (mixed >> np.uint64(16))
    words = np.zeros(4, np.uint64)
    constant = np.uint64(0x8B51F9DD)
    for i in range(8):
        value, constant = _hashed(pool[i % 4], constant, np.uint64(0x58F38DED))
        words[i // 2] |= value << np.uint64(32 * (i % 2))
    one = np.uint64(1)
    inc_high, inc_low = (words[2] << one) | (words[3] >> np.uint64(63)), (words[3] << one) | one
    low = inc_low + words[1]  # one step from zero, plus the initial state
    high = inc_high + words[0] + np.uint64(low < words[1])
    for i in range(-1, len(out)):
        product = _MULTIPLIER_LOW * low
        high = high_product(_MULTIPLIER_LOW, low) + _MULTIPLIER_LOW * high + _MULTIPLIER_HIGH * low
        low = product + inc_low
        high = high + inc_high + np.uint64(low < product)
        if i >= 0:
            folded, turn = high ^ low, high >> np.uint64(58)
            word = (folded >> turn) | (folded << ((np.uint64(64) - turn) & np.uint64(63)))
            out[i] = (word >> np.uint64(11)) * (1.0 / 9007199254740992.0)
