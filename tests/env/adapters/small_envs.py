"""Small Gymnasium and PettingZoo environments for tests; worker processes import them from here."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env[Any, Any]):
    """Observes a number from its seed, its step and the sum of its actions; hangs, dies or raises if a file asks for it."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, flags: Path | str | None = None, length: int = 5) -> None:
        self.flags, self.length = Path(flags) if flags is not None else None, length

    def _raised(self, name: str) -> bool:
        """Return whether a file asks for this fault in this step; delete the file unless it says `for ever`."""
        if self.flags is None:
            return False
        flag = self.flags / f"{name}-{self.step_}"
        if not flag.exists():
            return False
        if flag.read_text() != "for ever":
            flag.unlink()
        return True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_, self.sum = 0, 0
        self.luck = float(self.np_random.integers(1000))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_ += 1
        self.sum += int(action)
        if self._raised("hang"):
            time.sleep(60.0)
        if self._raised("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._raised("raise"):
            raise ZeroDivisionError("the sky fell")
        return self._seen(), float(action), self.step_ >= self.length, False, {}

    def _seen(self) -> Any:
        return np.array([self.luck, self.step_, self.sum], np.float32)


gymnasium.register("Counter-v0", entry_point="tests.env.adapters.small_envs:Counter", disable_env_checker=True)


class Leavers:
    """A parallel environment: each agent leaves after a step of its own, one comes late, spaces and masks differ."""

    metadata = {"name": "leavers"}
    possible_agents = ("short", "long", "late")

    def __init__(self, *, revive: bool = False, vanish: bool = False, limit: bool = False) -> None:
        """limit: the agent that leaves first is truncated, while the others go on."""
        self.revive, self.vanish, self.limit = revive, vanish, limit
        self._sees = {
            "short": spaces.Box(0, 9, (2,), np.float32),
            "long": spaces.Dict({"observation": spaces.Discrete(4), "action_mask": spaces.Box(0, 1, (3,), np.int8)}),
            "late": spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(2))),
        }
        self._does = {
            "short": spaces.Discrete(2, start=1),
            "long": spaces.Discrete(3),
            "late": spaces.MultiDiscrete([2, 3]),
        }
        self.taken: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        return self._sees[agent]

    def action_space(self, agent: str) -> Any:
        return self._does[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.turn = ["short", "long"], 0
        self.first = int(np.random.default_rng(seed).integers(4))
        return self._show(), {name: {} for name in self.agents}

    def _show(self) -> dict[str, Any]:
        every = {
            "short": np.full(2, self.turn, np.float32),
            "long": {
                "observation": (self.first + self.turn) % 4,
                "action_mask": np.array([1, self.turn % 2, 0], np.int8),
            },
            "late": (np.array([1, 0], np.int8), self.turn % 2),
        }
        return {name: every[name] for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert set(actions) == set(self.agents)
        self.taken.append(actions)
        self.turn += 1
        if self.turn == 1:
            self.agents = [*self.agents, "late"]
        seen = self._show()
        ended = {name: (name == "short" and self.turn == 2) or self.turn == 4 for name in self.agents}
        cut = {name: name == "long" and self.turn == 4 for name in self.agents}
        cut["short"] = self.limit and self.turn == 2
        rewards = {name: float(self.turn) for name in self.agents}
        infos: dict[str, Any] = {name: {} for name in self.agents}
        ends = {name: ended[name] and not cut[name] for name in self.agents}
        self.agents = [name for name in self.agents if not ended[name] and not cut[name]]
        if self.revive and self.turn == 3:
            self.agents.append("short")
        if self.vanish and self.turn == 3:
            self.agents.remove("long")
        return seen, rewards, ends, cut, infos

    def close(self) -> None:
        pass
