"""The text of a small target file with an option `world.spoil`, which breaks something."""

GAME = '''
"""A number to guess, for each of a few agents."""
import os
import signal
import numpy as np
from parallel_agents import Agent, ParallelEnvironment


class Guess(ParallelEnvironment):
    default_config = {
        "experiment": {"epochs": 4, "max_turns": 5},
        "world": {"agents": 2, "spoil": ""},
        "model": {"hidden": (4,), "batch_size": 2, "updates_per_round": 2, "learning_starts": 2, "buffer_size": 50},
        "parallel": {"train_interval": 1, "backend": "inline"},
    }

    def setup_agents(self):
        self.agents = [Agent(model=self.make_model((2,), 3)) for _ in range(self.config.world["agents"])]
        if self.config.world["spoil"] == "shared model":
            self.agents[1].model = self.agents[0].model
        if self.config.world["spoil"] == "shared buffer":
            self.agents[1].model.memory = self.agents[0].model.memory
        if self.config.world["spoil"] == "action":
            self.agents[0].model = TooMuch()

    def reset(self):
        self.number = self.epoch % 3

    def observe(self):
        observations = np.full((len(self.agents), self.n_worlds, 2), self.number, np.float32)
        if self.config.world["spoil"] == "shape":
            return observations[..., :1]
        if self.config.world["spoil"] == "nan":
            observations[0, 0, 0] = np.nan
        return observations

    def apply_actions(self, actions):
        if self.config.world["spoil"] == "raise":
            raise ZeroDivisionError("the world has come to an end")
        if self.config.world["spoil"] == "interrupt" and (self.epoch, self.turn) == (2, 1):
            os.kill(os.getpid(), signal.SIGINT)
        rewards = (np.asarray(actions) == self.number).astype(np.float32)
        return rewards * (np.nan if self.config.world["spoil"] == "reward" else 1.0)


class TooMuch:
    n_actions = 3

    def take_action(self, state):
        return 3
'''
