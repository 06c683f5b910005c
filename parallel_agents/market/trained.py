"""A trained policy outside of its training: as a bidder beside the baselines, and as a file for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parallel_agents.algorithms import Model
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import write_atomically
from parallel_agents.market.actions import ActionForm, BiddingMarket
from parallel_agents.market.market_environment import MarketEnvironment
from parallel_agents.market.policy_agents import ModelActor
from parallel_agents.market.simulation import MarketWorlds


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
