"""How simulators, trainers and comparisons let an agent act in many worlds at once, in this order of preference:

    a model of this library     one batched forward; its random numbers are addressed by world, lap and step
    act_many(states)            one call for (W, F) states; in the calling thread if the agent has `instant = True`
    act, take_action, …         one call per world; coroutine functions are awaited together

Other agents than models are called in a thread of their own, so that one that never returns exceeds its deadline and
blocks nothing. Their results do not depend on which worlds are simulated together if their actions depend on the state
alone.

A trained model is a `TrainedBidder` beside the baselines, and a file for other programs (`export_policy`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from parallel_agents.algorithms import Model
from parallel_agents.algorithms.acting import Inference, Weights
from parallel_agents.core.errors import ConfigError, ContractError, ShapeError
from parallel_agents.core.files import write_atomically
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.core.system import BackgroundThread
from parallel_agents.core.types import Array
from parallel_agents.env.external_training import action_function
from parallel_agents.market.actions import ActionForm, BiddingMarket
from parallel_agents.market.simulation import MarketWorlds

if TYPE_CHECKING:
    from parallel_agents.market.market_environment import MarketEnvironment

_TILE = 32
"""Rows of a forward, whatever the number of worlds: the last bits of a row depend on the number of rows."""


class Actor(Protocol):
    """An agent that acts in W worlds, which are stepped together."""

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Prepare for an episode in these worlds."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        """Return actions (W, …) for states (W, F)."""


def make_actor(agent: Any) -> Actor:
    """Return an actor that calls the agent in the fastest way that it offers."""
    model = agent if isinstance(agent, Model) else getattr(agent, "model", None)
    if isinstance(model, Model):
        return ModelActor(model)
    return _CalledActor(agent)


class ModelActor:
    """A model of this library; it explores as in training, unless another exploration is given."""

    def __init__(self, model: Model, exploration: float | None = None) -> None:
        self.spec, self.identity = model.spec, model.identity  # not the model: its buffer would travel with it
        self._exploration = model.epsilon if exploration is None else exploration
        learner = model.spec.learner()
        self._inference = Inference(learner.network, 1, _TILE, together=True)
        self._inference.weights = Weights(0, learner.policy(model.state))
        self._draws: NDArray[np.float64] = np.empty((0, 0, 0, 0))

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        who, slots = self.identity, self.spec.slots
        self._draws = uniforms(who.seeds, Purpose.ACT, who.agents, worlds, epoch=lap, turns=steps, slots=slots)

    def choose(self, states: NDArray[np.float32], step: int) -> Array:
        """Return actions (W, …) for states (W, F)."""
        inputs = self.spec.network.inputs
        if states.shape[1] != inputs:
            raise ShapeError(
                f"the model takes {inputs} features, the worlds have {states.shape[1]}: make a model for these worlds"
            )
        count = len(states)
        padded = np.zeros((-(-count // _TILE) * _TILE, inputs), np.float32)
        padded[:count] = states
        parts = [self._inference.forward(padded[None, i : i + _TILE]) for i in range(0, len(padded), _TILE)]
        outputs = np.concatenate(parts, axis=1)[:, :count]
        actions, _ = self.spec.choose(outputs, self._draws[step], np.array([self._exploration]), None)
        return np.asarray(actions[0])

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        return self.choose(states, step)


class _CalledActor:
    """An agent that is not a model of this library; nothing has to be prepared for an episode."""

    def __init__(self, agent: Any) -> None:
        self._many: Callable[[Any], Any] | None = getattr(agent, "act_many", None)
        self._act: Callable[[Any], Any] = self._many or action_function(agent)
        self._instant = getattr(agent, "instant", False)

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Do nothing."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        act = self._act
        if act is not self._many and inspect.iscoroutinefunction(act):
            return np.asarray(await asyncio.gather(*(act(state) for state in states)))
        if act is not self._many:
            return np.asarray(await _in_thread(lambda: [act(state) for state in states]))
        actions = np.asarray(act(states) if self._instant else await _in_thread(lambda: act(states)))
        if actions.shape[:1] != states.shape[:1]:
            raise ShapeError(f"act_many gave actions of shape {actions.shape} for {len(states)} states: give one each")
        return actions


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, called in a thread that is abandoned if nobody waits any longer.

    Raise RuntimeError if the system gives no thread: in the event loop, no deadline could end the call.
    """

    def call() -> Any:
        try:
            return work()
        except StopIteration as error:  # no future can hold it: it would be waited for until the deadline
            raise ContractError("the agent raised StopIteration: give an action for every state") from error

    thread = BackgroundThread("market-agent")
    future = thread.submit(call)
    thread.close()
    return await asyncio.wrap_future(future)


# -- trained models --------------------------------------------------------------------------------------------------


@dataclass
class TrainedBidder:
    """The best actions of a model of this library, in any worlds of the same patterns; a `baselines.Bidder`."""

    model: Model
    form: ActionForm

    @classmethod
    def of(cls, environment: MarketEnvironment, agent: int = 0) -> TrainedBidder:
        """Return the bidder that an environment has trained."""
        return cls(environment.agents[agent].model, environment.form)

    def begin(self, market: MarketWorlds) -> None:
        """Read the newest weights."""
        self._actor = ModelActor(self.model, exploration=0.0)
        self._actor.begin_episode([world.index for world in market.worlds], 0, market.steps)
        self._bidding = BiddingMarket(market, self.form)

    def act(self, market: MarketWorlds) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return alphas (1, W, J) and creatives (1, W)."""
        return self._bidding.bids(self._actor.choose(market.observe()[0], market.step_number)[None])


class PolicyModule(torch.nn.Module):
    """The policy as a module: observations (B, features) to alphas (B, J) and scores of creatives (B, C)."""

    def __init__(self, model: Model, form: ActionForm, names: Sequence[str]) -> None:
        super().__init__()
        if form.name != "paced" or model.spec.hidden_size:
            raise ConfigError("only a policy of paced actions without memory can be exported: use --actions paced")
        learner = model.spec.learner()
        self.register_buffer("rows", learner.policy(model.state).detach().clone())
        self.register_buffer("low", torch.tensor(form.corrections.low))
        self.register_buffer("high", torch.tensor(form.corrections.high))
        self._network, self._campaigns = learner.network, form.campaigns
        self._pace, self._log_target = names.index("pace"), names.index("log_target")

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return alphas and creative scores; the creative with the highest score is the one to show."""
        outputs = self._network.bound_forward(self.get_buffer("rows"))(observations[None])[0]
        low, high = self.get_buffer("low"), self.get_buffer("high")
        means = outputs[:, : len(low)]
        actions = low + (torch.tanh(means) + 1.0) / 2.0 * (high - low)
        limit = actions[:, 1] + observations[:, self._log_target]
        level = torch.minimum(observations[:, self._pace] + actions[:, 0], limit)
        shifts, scores = actions[:, 2 : 2 + self._campaigns], actions[:, 2 + self._campaigns :]
        return torch.exp(level[:, None] + shifts), scores


def export_policy(environment: MarketEnvironment, out: Path, *, onnx: bool = False) -> dict[str, str]:
    """Write the policy of the first agent as `policy.pt2` (`torch.export`) and, if asked, `policy.onnx`.

    `policy.json` names inputs, campaigns and creatives, and the predicted value of a click in every campaign.
    """
    module = PolicyModule(environment.agents[0].model, environment.form, environment.market.names).eval()
    market = environment.market
    example = (torch.zeros(2, len(market.names)),)
    batch = torch.export.Dim("batch", min=1)
    out.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(module, example, dynamic_shapes=({0: batch},))
    files = {"module": out / "policy.pt2"}
    torch.export.save(program, files["module"])
    if onnx:
        files["onnx"] = out / "policy.onnx"
        try:
            torch.onnx.export(program, example, str(files["onnx"]), input_names=["observations"], dynamo=True)
        except ModuleNotFoundError as error:
            raise ConfigError(f"ONNX needs the package {error.name}: install onnx and onnxscript") from error
    description = {
        "inputs": list(market.names),
        "campaigns": list(market.worlds[0].campaigns),
        "creatives": list(market.worlds[0].creatives),
        "predicted_value": market.parameters.predicted_value[0].tolist(),
        "bid": "alpha * predicted_value, per click and campaign",
    }
    files["description"] = out / "policy.json"
    write_atomically(files["description"], [json.dumps(description, indent=1).encode()])
    return {name: str(path) for name, path in files.items()}


def load_policy(path: Path) -> Any:
    """Return the exported module of a `policy.pt2`: a function of observations (B, features)."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: write it with `parallel-agents market export`")
    return torch.export.load(path).module()
