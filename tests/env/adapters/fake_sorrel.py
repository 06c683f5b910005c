"""A fake of sorrel with its documented names, signatures, order of calls and habits, and nothing else.

Global generators, models that flip their networks between modes for each action, a frame stack read out of the
replay buffer, `range(epochs + 1)`: all that is in sorrel 1.6, and is here so that the adapter meets it.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import nn


class Entity:
    """Something on the map."""

    has_transitions = False
    passable = True
    value = 0.0

    def __init__(self) -> None:
        self.location: tuple[int, int, int] | None = None
        self.kind = type(self).__name__

    def transition(self, world: Any) -> None:
        pass


class Ground(Entity):
    has_transitions = True

    def transition(self, world: Any) -> None:
        if np.random.random() < 0.01:
            world.add(self.location, Gem())


class Gem(Entity):
    value = 1.0


class World:
    """A grid of entities, agents on its upper layer."""

    def __init__(self, size: int = 9) -> None:
        self.size = size
        self.total_reward, self.is_done, self.turn = 0.0, False, 0
        self.create_world()

    def create_world(self) -> None:
        self.map = np.full((self.size, self.size, 2), Entity(), dtype=object)
        for at in np.ndindex(self.map.shape[:2]):
            self.add((*at, 0), Ground())
        self.total_reward = 0.0

    def add(self, at: Any, entity: Entity) -> None:
        entity.location = at
        self.map[at] = entity


class Buffer:
    """sorrel's buffer: states as rows, extra columns by name."""

    def __init__(self, capacity: int, obs_shape: tuple[int, ...], n_frames: int = 1, **extra: tuple[int, ...]) -> None:
        self.capacity, self.n_frames = capacity, n_frames
        self.states = np.zeros((capacity, *obs_shape), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.extra_data = {name: np.zeros((capacity, *shape), np.int64) for name, shape in extra.items()}
        self.idx = self.size = 0

    def add(self, obs: Any, action: int, reward: float, done: bool, **extra: Any) -> None:
        self.states[self.idx], self.actions[self.idx] = np.asarray(obs).reshape(-1), action
        self.rewards[self.idx], self.dones[self.idx] = reward, done
        for name, value in extra.items():
            self.extra_data[name][self.idx] = value
        self.idx, self.size = (self.idx + 1) % self.capacity, min(self.size + 1, self.capacity)

    def add_empty(self) -> None:
        self.idx = (self.idx + self.n_frames - 1) % self.capacity

    def current_state(self) -> Any:
        return self.states[[(self.idx - k) % self.capacity for k in range(self.n_frames - 1, 0, -1)]]

    def sample(self, batch_size: int) -> tuple[Any, ...]:
        at = np.random.choice(max(1, self.size - self.n_frames), batch_size)
        frames = at[:, None] + np.arange(self.n_frames)
        states = self.states[frames % self.capacity].reshape(batch_size, -1)
        after = self.states[(frames + 1) % self.capacity].reshape(batch_size, -1)
        last = frames[:, -1] % self.capacity
        return states, self.actions[last], self.rewards[last], after, self.dones[last]


class RolloutBuffer(Buffer):
    """What sorrel's PPO keeps."""


class QNetwork(nn.Module):
    """Two layers and dropout, which acts differently while it learns."""

    def __init__(self, inputs: int, actions: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, actions)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))

    def get_qvalues(self, x: Any) -> Any:
        return self.forward(x)


class Model(nn.Module):
    """sorrel's habits: a module that holds its networks twice, ε from the global generator, the network flipped to eval() and back for each action."""

    def __init__(
        self, input_size: int, action_space: int, n_frames: int = 2, width: int = 32, epsilon: float = 0.3
    ) -> None:
        super().__init__()
        self.action_space, self.epsilon, self.trained = action_space, epsilon, 0
        self.seed = torch.default_generator
        self.qnetwork_local = QNetwork(input_size * n_frames, action_space, width)
        self.qnetwork_target = copy.deepcopy(self.qnetwork_local)
        self.models = {"local": self.qnetwork_local, "target": self.qnetwork_target}
        self.optimizer = torch.optim.Adam(self.qnetwork_local.parameters(), lr=1e-3)
        self.memory = Buffer(256, (input_size,), n_frames, positions=(2,))
        self.batch_size = 32

    def take_action(self, state: Any) -> int:
        if random.random() <= self.epsilon:
            return int(random.choices(range(self.action_space))[0])
        self.qnetwork_local.eval()
        with torch.no_grad():
            values = self.qnetwork_local.get_qvalues(torch.from_numpy(np.asarray(state, np.float32)))
        self.qnetwork_local.train()
        return int(values.argmax())

    def train_step(self) -> Any:
        states, actions, rewards, after, dones = self.memory.sample(batch_size=self.batch_size)
        with torch.no_grad():
            best = self.qnetwork_target(torch.from_numpy(after)).max(1).values
        target = torch.from_numpy(rewards) + 0.9 * best * (1 - torch.from_numpy(dones))
        assert self.qnetwork_local.training  # a network that acts must not take this away from one that learns
        guess = self.qnetwork_local(torch.from_numpy(states)).gather(1, torch.from_numpy(actions)[:, None])[:, 0]
        loss = nn.functional.mse_loss(guess, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.trained += 1
        return np.array(loss.item())

    def start_epoch_action(self, **_: Any) -> None:
        self.memory.add_empty()
        self.qnetwork_target.load_state_dict(self.qnetwork_local.state_dict())

    def end_epoch_action(self, **_: Any) -> None:
        pass

    def epsilon_decay(self, rate: float) -> None:
        self.epsilon *= 1 - rate


class Agent(Entity, ABC):
    """Sees, decides, acts, remembers."""

    passable = False
    has_transitions = True

    def __init__(self, model: Any, location: tuple[int, int, int]) -> None:
        super().__init__()
        self.model, self.location = model, location

    def reset(self) -> None:
        pass

    @abstractmethod
    def pov(self, world: World) -> Any: ...

    @abstractmethod
    def get_action(self, state: Any) -> Any: ...

    @abstractmethod
    def act(self, world: World, action: Any) -> float: ...

    @abstractmethod
    def is_done(self, world: World) -> bool: ...

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        self.model.memory.add(state, action, reward, done, positions=self.location[:2])  # type: ignore[index]

    def transition(self, world: World) -> None:
        state = self.pov(world)
        action = self.get_action(state)
        reward = self.act(world, action)
        done = self.is_done(world)
        world.total_reward += reward
        self.add_memory(state, action, reward, done)


class Environment(ABC):
    """sorrel's loop."""

    _active_logger: Any = None

    def __init__(self, world: World, config: dict[str, Any], stop_if_done: bool = False) -> None:
        self.world, self.config, self.stop_if_done = world, config, stop_if_done
        self.turn, self.log = 0, []
        self.agents: list[Any] = []
        self.world.create_world()
        self.setup_agents()
        self.populate_environment()

    @abstractmethod
    def setup_agents(self) -> None: ...

    @abstractmethod
    def populate_environment(self) -> None: ...

    def reset(self) -> None:
        self.turn, self.world.is_done = 0, False
        self.world.create_world()
        self.populate_environment()
        for agent in self.agents:
            agent.reset()

    def take_turn(self, epoch: int = 0) -> None:
        self.turn += 1
        for _, entity in np.ndenumerate(self.world.map):
            if entity.has_transitions and not isinstance(entity, Agent):
                entity.transition(self.world)
        for agent in self.agents:
            agent.transition(self.world)
        if self._active_logger is not None:
            self.on_turn_end(self.collect_turn_stats(epoch))

    def collect_turn_stats(self, epoch: int) -> Any:
        return epoch, self.turn, self.world.total_reward

    def on_turn_end(self, stats: Any) -> None:
        self._active_logger.append(stats)

    def _model_start_epoch_action(self, agent: Any, epoch: int) -> None:
        agent.model.start_epoch_action(epoch=epoch)

    def _model_end_epoch_action(self, agent: Any, epoch: int) -> None:
        agent.model.end_epoch_action(epoch=epoch)

    def _model_train_step(self, agent: Any) -> Any:
        return agent.model.train_step()

    def run_experiment(self, animate: bool = True, logging: bool = True, logger: Any = None) -> None:
        self._active_logger = logger
        for epoch in range(self.config["experiment"]["epochs"] + 1):
            self.reset()
            for agent in self.agents:
                self._model_start_epoch_action(agent, epoch)
            while self.turn < self.config["experiment"]["max_turns"]:
                self.take_turn(epoch)
            self.world.is_done = True
            total_loss = 0.0
            for agent in self.agents:
                self._model_end_epoch_action(agent, epoch)
                total_loss += float(self._model_train_step(agent))
            self.log.append((epoch, total_loss, self.world.total_reward, self.agents[0].model.epsilon))
            for agent in self.agents:
                agent.model.epsilon_decay(self.config["model"]["epsilon_decay"])


# -- a game, as a user would have written it ------------------------------------------------------------------------


class Collector(Agent):
    """Walks about and takes gems; decides as every example of sorrel does."""

    def pov(self, world: World) -> Any:
        row, column, _ = self.location  # type: ignore[misc]
        size = world.size
        window = [world.map[(row + r) % size, (column + c) % size] for r in range(-2, 3) for c in range(-2, 3)]
        seen = [[own[0].value, float(isinstance(own[1], Agent))] for own in window]
        return np.array(seen, np.float32).reshape(1, -1)

    def get_action(self, state: Any) -> Any:
        return self.model.take_action(np.vstack((self.model.memory.current_state(), state)).reshape(1, -1))

    def act(self, world: World, action: Any) -> float:
        row, column, _ = self.location  # type: ignore[misc]
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        at = ((row + down) % world.size, (column + right) % world.size)
        if not world.map[(*at, 1)].passable:
            return 0.0
        world.add((row, column, 1), Entity())
        world.add((*at, 1), self)
        reward = world.map[(*at, 0)].value
        if reward:
            world.add((*at, 0), Ground())
        return float(reward)

    def is_done(self, world: World) -> bool:
        return bool(world.is_done)


class Gems(Environment):
    """A game whose turns do something more, as sorrel's cleanup does."""

    model_type: Any = Model

    def setup_agents(self) -> None:
        section = self.config["model"]
        places = np.ndindex(self.world.size, self.world.size)
        self.own_turns = 0
        self.agents = []
        for _, at in zip(range(self.config["world"]["agents"]), places, strict=False):
            model = self.model_type(50, 4, width=section["width"], epsilon=section["epsilon"])
            self.agents.append(Collector(model, (*at, 1)))

    def populate_environment(self) -> None:
        for agent in self.agents:
            self.world.add(agent.location, agent)
        for at in np.ndindex(self.world.size, self.world.size):
            if np.random.random() < 0.2:
                self.world.add((*at, 0), Gem())

    def take_turn(self, epoch: int = 0) -> None:
        self.own_turns += 1
        super().take_turn(epoch)
