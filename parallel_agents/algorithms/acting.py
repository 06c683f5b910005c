"""Choose actions: draws, frames, recurrent state, one batched forward pass, exploration.

Shapes: N agents, W worlds, D numbers of an observation, F frames, A actions, K network outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.algorithms import acting_kernels as kernels
from parallel_agents.algorithms.acting_kernels import Acting, Policy, Rule, Scratch, Turn
from parallel_agents.algorithms.normalization import NormalizedNetwork
from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.errors import ActionError, ShapeError
from parallel_agents.core.seeding import Identity, Purpose, uniforms
from parallel_agents.core.types import Array
from parallel_agents.kernels.mlp import ACTIVATIONS, RELU
from parallel_agents.nn import ActingNetwork, ActorCritic, Forward, QuantileNetwork, SquashedGaussian
from parallel_agents.nn.layers import MLP, tile_rows, width
from parallel_agents.nn.quantile import COSINES

_NO_ROWS = np.empty((0, 0), np.float32)
_NO_PROGRAM = np.empty((0, 10), np.int64)

# -- draws -----------------------------------------------------------------------------------------------------------

BLOCK_NUMBERS = 500_000
"""Random numbers that are drawn ahead, at most."""


class ActionDraws:
    """Uniform numbers for every agent, world and turn, drawn a block of turns at a time.

    Agents that cannot act or do not explore have their numbers too, so that nothing shifts.
    """

    def __init__(self, identity: Identity, worlds: Sequence[int], slots: int) -> None:
        self._identity, self._worlds, self._slots = identity, tuple(worlds), slots
        self.turns = max(1, min(256, BLOCK_NUMBERS // max(1, len(identity) * len(self._worlds) * slots)))
        """Turns of a block."""
        self._position = (-1, -1)
        self._block = np.empty((0, 0, 0, 0))

    def at(self, epoch: int, turn: int) -> NDArray[np.float64]:
        """Return the numbers of a turn, (N, W, slots) in [0, 1)."""
        position = (epoch, turn // self.turns)
        if position != self._position:
            self._block = uniforms(
                self._identity.seeds,
                Purpose.ACT,
                self._identity.agents,
                self._worlds,
                epoch=epoch,
                turns=self.turns,
                slots=self._slots,
                first_turn=position[1] * self.turns,
            )
            self._position = position
        numbers: NDArray[np.float64] = self._block[turn % self.turns]
        return numbers

    def between(self, epoch: int, start: int, end: int, part: slice = slice(None)) -> NDArray[np.float64]:
        """Return the numbers of turns start … end - 1 of some agents, (turns, N, W, slots)."""
        own = self._identity.rows(part)
        where = {"epoch": epoch, "turns": end - start, "slots": self._slots, "first_turn": start}
        return uniforms(own.seeds, Purpose.ACT, own.agents, self._worlds, **where)


# -- what a network sees ---------------------------------------------------------------------------------------------


class FrameStack:
    """The last F observations of every agent and world as one input; zeros before an episode's start.

    >>> frames = FrameStack(agents=1, worlds=1, size=1, count=3)
    >>> frames.push(np.array([[[5.0]]], np.float32), np.array([[True]])).tolist()
    [[[0.0, 0.0, 5.0]]]
    >>> frames.push(np.array([[[6.0]]], np.float32), np.array([[False]])).tolist()
    [[[0.0, 5.0, 6.0]]]
    """

    def __init__(self, agents: int, worlds: int, size: int, count: int, dtype: str = "float32") -> None:
        self.count = count
        self.size = size
        self.window = np.zeros((agents, worlds, count * size), dtype)

    def push(self, observations: Array, first: Array) -> Array:
        """Return (N, W, F·D), oldest frame first, after new observations (N, W, D).

        first: (N, W) bool, True where the turn is the first of an episode.
        """
        if self.count == 1:
            return observations
        window = np.empty_like(self.window)
        window[..., : -self.size] = self.window[..., self.size :]
        window[first, : -self.size] = 0
        window[..., -self.size :] = observations
        self.window = window
        return window

    def replace(self, index: int, observations: Array) -> Array:
        """Replace one agent's newest observations by (W, D) in the same turn; return its (W, F·D)."""
        if self.count == 1:
            return observations
        self.window[index, :, -self.size :] = observations
        return np.asarray(self.window[index])


class RecurrentState:
    """The hidden state that recurrent networks carry from turn to turn, per agent and world; none where `size` is 0.

    It enters a network beside the observation and leaves it beside the outputs. It starts at zero with each episode.
    `before` is the state from which the newest turn started: an agent that observes again in the same turn starts from
    it once more, and so does learning.
    """

    def __init__(self, agents: int, worlds: int, size: int) -> None:
        self.size = size
        self.before: NDArray[np.float32] = np.zeros((agents, worlds, size), np.float32)
        self.after = self.before

    def inputs(self, observations: Array, first: Array) -> Array:
        """Return network inputs (N, W, D + size); first: (N, W) bool, True where an episode starts."""
        if not self.size:
            return observations
        self.before = np.where(first[..., None], np.float32(0.0), self.after)
        return np.concatenate([observations, self.before], -1)

    def outputs(self, outputs: Array) -> Array:
        """Return outputs (N, W, K) and keep the new states from network outputs (N, W, K + size)."""
        if not self.size:
            return outputs
        self.after = np.ascontiguousarray(outputs[..., -self.size :])
        return np.ascontiguousarray(outputs[..., : -self.size])

    def inputs_again(self, row: int, observations: Array) -> Array:
        """Return one agent's network inputs (W, D + size) for newer observations in the same turn."""
        return np.concatenate([observations, self.before[row]], -1) if self.size else observations

    def outputs_again(self, row: int, outputs: Array) -> Array:
        """Return one agent's outputs (W, K) and keep its new state, in the same turn."""
        if not self.size:
            return outputs
        self.after[row] = outputs[..., -self.size :]
        return np.ascontiguousarray(outputs[..., : -self.size])

    def inputs_ahead(self, observations: Array) -> Array:
        """Return network inputs (N, W, D + size) for a turn that has not begun; keep nothing."""
        return np.concatenate([observations, self.after], -1) if self.size else observations

    def outputs_ahead(self, outputs: Array) -> Array:
        """Return outputs (N, W, K) for a turn that has not begun; keep nothing."""
        return outputs[..., : -self.size] if self.size else outputs

    def columns(self) -> dict[str, Any]:
        """Return what is stored with the turn's transitions."""
        return {"hidden": self.before} if self.size else {}


# -- the forward pass ------------------------------------------------------------------------------------------------

CALL_WEIGHTS = 200_000
"""The overhead of one agent's forward pass, in weights that could be read in that time."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A published version of the weights of a stack."""

    version: int
    rows: Tensor
    """(N, P)"""


class Inference:
    """Compute the outputs of all agents of a stack: in one batched forward pass, or one per agent with the same bytes.

    The number of rows per agent is fixed: worlds go through in tiles, the last one padded. So a recomputation of one
    agent, or a stack of one, has the same shape per agent, and the same bytes.
    """

    def __init__(
        self,
        network: ActingNetwork,
        agents: int,
        worlds: int,
        *,
        together: bool,
        device: str = "cpu",
        compiled: bool = False,
        first_world: int = 0,
        all_worlds: int | None = None,
    ) -> None:
        """together: one forward pass of torch for all agents. compiled: compute without torch; see `Network.native`.

        first_world, all_worlds: in a shard, where its worlds stand among all of them: they keep their places in tiles.
        """
        self.compiled = CompiledNetwork(network, worlds) if compiled else None
        self.network = network
        self.agents = agents
        self.worlds = worlds
        self.device = device
        self.tile = tile_rows(all_worlds or worlds)
        self._before = first_world % self.tile
        """Rows of the first tile that belong to worlds of another shard."""
        self.weights = Weights(0, torch.empty(0, 0))
        """The acting weights. Assign new ones to publish them: they are never written in place, so that is one swap."""
        self._parts = [slice(0, agents)] if together else [slice(n, n + 1) for n in range(agents)]
        self._bound_weights: Weights | None = None
        self._bound: list[tuple[slice, Forward]] = []
        self._single: dict[int, Forward] = {}
        self._packed = (_NO_ROWS, _NO_ROWS, _NO_ROWS)

    def policy(self, choice: Choice, part: slice) -> Policy:
        """Return what compiled acting of some agents reads: the network, the acting weights, and how to choose."""
        assert self.compiled is not None
        self._bind()
        return choice.policy(self.compiled.program, *(own[part] for own in self._packed))

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def skips_agents(self) -> bool:
        """True where the networks are so large that leaving out some agents saves time."""
        return self.compiled is None and self.agents * self.weights.rows.shape[1] > CALL_WEIGHTS

    def forward(self, inputs: Array) -> Array:
        """Return (N, W, out) from (N, W, in)."""
        if self.compiled is not None:
            return self._forward_compiled(0, self.agents, inputs)
        self._bind()
        x = self._tensor(inputs)
        with torch.inference_mode():
            if len(self._bound) == 1:
                return self._array(self._in_tiles(self._bound[0][1], x))
            return self._array(torch.cat([self._in_tiles(forward, x[part]) for part, forward in self._bound]))

    def forward_some(self, inputs: Array, needed: Array, outputs: int) -> Array:
        """Return what `forward` returns for the agents of the (N,) mask, byte for byte; others may get zeros."""
        one, chosen = self.weights.rows.shape[1], np.flatnonzero(needed).tolist()
        if len(self._parts) == 1 and len(chosen) * (one + CALL_WEIGHTS) >= self.agents * one + CALL_WEIGHTS:
            return self.forward(inputs)  # together is quicker
        found = np.zeros((self.agents, self.worlds, outputs), np.float32)
        for n in chosen:
            found[n] = self.forward_agent(n, inputs[n])
        return found

    def forward_agent(self, index: int, inputs: Array) -> Array:
        """Return one agent's (W, out) from (W, in), the bytes that `forward` gives it."""
        if self.compiled is not None:
            return np.asarray(self._forward_compiled(index, index + 1, inputs[None])[0])
        self._bind()
        if index not in self._single:
            self._single[index] = self.network.bound_forward(self.weights.rows[index : index + 1])
        with torch.inference_mode():
            return self._array(self._in_tiles(self._single[index], self._tensor(inputs[None]))[0])

    def _bind(self) -> None:
        """Prepare the network for the acting weights where they are new."""
        if self._bound_weights is not self.weights:
            weights = self.weights
            if self.compiled is not None:
                self._packed, self._bound_weights = self.compiled.read(weights.rows), weights
                return
            self._bound = [(part, self.network.bound_forward(weights.rows[part])) for part in self._parts]
            self._single = {}
            self._bound_weights = weights

    def _forward_compiled(self, low: int, high: int, inputs: Array) -> Array:
        """Return (high - low, W, out) for some agents from their inputs (high - low, W, in)."""
        assert self.compiled is not None
        self._bind()
        packed, centre, scale = (part[low:high] for part in self._packed)
        room = self.compiled.room
        outputs = np.empty((*inputs.shape[:2], room[1].shape[1]), np.float32)
        kernels.forward_all(self.compiled.program, packed, centre, scale, inputs, room[0], room[2], outputs)
        return outputs

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device == "cpu" else tensor.to(self.device)

    def _array(self, tensor: Tensor) -> Array:
        array: Array = (tensor if self.device == "cpu" else tensor.cpu()).numpy()
        return array

    def _in_tiles(self, forward: Forward, x: Tensor) -> Tensor:
        if self.worlds == self.tile:
            return forward(x)
        end = self._before + self.worlds
        missing = -end % self.tile
        if self._before or missing:
            x = torch.nn.functional.pad(x, (0, 0, self._before, missing))
        tiles = [forward(x[:, first : first + self.tile].contiguous()) for first in range(0, end, self.tile)]
        return torch.cat(tiles, 1)[:, self._before : end]


# -- choices ---------------------------------------------------------------------------------------------------------

EPSILON_SLOTS = 2
"""Draws of one ε-greedy choice: whether to explore, and which action."""


@dataclass(frozen=True)
class Choice:
    """How an algorithm's actions follow from network outputs; `acting_kernels` computes it."""

    rule: Rule
    sizes: tuple[int, ...] = ()
    """Sizes of the discrete choices."""
    low: tuple[float, ...] = ()
    """Lower bounds of continuous actions."""
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    """Shape of an action."""

    @property
    def numbers(self) -> int:
        """Numbers of an action."""
        return math.prod(self.shape)

    def policy(self, program: Array = _NO_PROGRAM, weights: Array = _NO_ROWS, *normal: Array) -> Policy:
        """Return what the kernels read, with a network or without one."""
        centre, scale = normal or (_NO_ROWS, _NO_ROWS)
        bounds = np.array([self.low, self.high], np.float32)
        return Policy(int(self.rule), program, weights, centre, scale, np.array(self.sizes, np.int64), bounds)

    def turn(self, observations: Array, masks: Array | None) -> Turn:
        """Return arrays for the actions of a turn, and for what is stored beside them."""
        agents, worlds = observations.shape[:2]
        learns = int(self.rule != Rule.EPSILON_GREEDY)
        gaussian = self.rule == Rule.GAUSSIAN
        return Turn(
            observations=observations,
            actions=np.empty((agents, worlds, self.numbers), np.float32 if gaussian else np.int64),
            log_prob=np.empty((agents, worlds, learns), np.float32),
            value=np.empty((agents, worlds, learns), np.float32),
            raw=np.empty((agents, worlds, self.numbers if gaussian else 0), np.float32),
            masks=np.empty((agents, worlds, 0), np.bool_) if masks is None else masks,
        )

    def result(self, turn: Turn) -> tuple[Array, dict[str, Array]]:
        """Return the actions (N, W, …) of a turn, and the columns that are stored beside them."""
        columns: dict[str, Array] = {}
        if self.rule != Rule.EPSILON_GREEDY:
            columns = {"log_prob": turn.log_prob[..., 0], "value": turn.value[..., 0]}
        if self.rule == Rule.GAUSSIAN:
            columns["raw"] = turn.raw
        return turn.actions if self.shape else turn.actions[..., 0], columns

    def __call__(
        self, outputs: Array, draws: NDArray[np.float64], exploration: NDArray[np.float64], masks: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Return actions (N, W, …) and the columns beside them from outputs (N, W, K) and draws (N, W, slots).

        >>> greedy = Choice(Rule.EPSILON_GREEDY, sizes=(3,))
        >>> greedy(np.array([[[0.0, 2.0, 1.0]]], np.float32), np.array([[[0.9, 0.5]]]), np.array([0.1]))[0].item()
        1
        """
        if masks is not None:
            self.check_masks(masks, outputs.shape[:2])
        turn = self.turn(np.empty((*outputs.shape[:2], 0), np.float32), masks)
        kernels.choose_all(self.policy(), turn, np.ascontiguousarray(outputs, np.float32), draws, exploration)
        return self.result(turn)

    def check_masks(self, masks: Array, shape: tuple[int, ...]) -> None:
        """Raise if masks do not have the shape (N, W, choices), or forbid every action of a choice."""
        if masks.shape != (*shape, sum(self.sizes)):
            wanted = (*shape, sum(self.sizes))
            raise ShapeError(f"action masks of shape {masks.shape}: wanted is (agents, worlds, actions) = {wanted}")
        ends = np.cumsum(self.sizes)
        for part in np.split(masks, ends[:-1], axis=-1):
            if not part.any(axis=-1).all():
                agent, world = np.argwhere(~part.any(axis=-1))[0]
                raise ActionError(
                    f"the action mask of agent {agent} in world {world} forbids every action: allow at least one"
                )


class TurnRoom:
    """Arrays for the turns of some agents of a stack, made once: what compiled acting reads and writes."""

    def __init__(
        self,
        choice: Choice,
        part: slice,
        observations: Array,
        masks: Array | None,
        scratch: Scratch,
        exploration: NDArray[np.float64],
    ) -> None:
        """part: the agents. observations (N, W, D), masks (N, W, choices) and exploration (N,): read in every turn."""
        turn = choice.turn(observations, masks)
        self.actions, self.columns = choice.result(turn)
        """(N, W, …) the actions of the newest turn, and the columns that are stored beside them."""
        if masks is not None:
            self.columns["masks"] = masks
        self._choice, self._part = choice, part
        self._rest = (by_reference(turn), by_reference(scratch), exploration)
        self._weights: Weights | None = None
        self._acting: Acting | None = None

    def acting(self, inference: Inference) -> Acting:
        """Return what the kernels take, made anew where weights have been published."""
        if self._acting is None or self._weights is not inference.weights:
            policy = by_reference(inference.policy(self._choice, self._part))
            self._weights, self._acting = inference.weights, by_reference(Acting(policy, *self._rest))
        return self._acting


def needs_forward(draws: NDArray[np.float64], epsilons: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (N,) bool, True where an agent does not explore in every world: only then are its values read.

    >>> needs_forward(np.array([[[0.9, 0.5]], [[0.1, 0.5]]]), np.array([0.6, 0.6])).tolist()
    [True, False]
    """
    return np.asarray((draws[..., 0] >= epsilons[:, None]).any(axis=1))


# -- compiled policies -----------------------------------------------------------------------------------------------


def network_program(network: MLP | ActorCritic | QuantileNetwork) -> Array:
    """Return the layers (L, 11) as `acting_kernels.forward` reads them.

    A line holds: inputs, outputs, numbers between two inputs of the weight, places of weight and bias in the row,
    activation (-1: none), whether it reads the network's inputs, the place of its outputs among the network's (-1: it
    is hidden), place and number of the quantiles' embeddings by which its inputs are multiplied, whether it is dueling.
    """
    offsets = dict(zip(network.layout.names, network.layout.offsets, strict=True))
    program: list[tuple[int, ...]] = []

    def add(weight: str, bias: str, fan_in: int, fan_out: int, activation: int, *rest: int) -> None:
        program.append((fan_in, fan_out, width(fan_out), offsets.get(weight, 0), offsets[bias], activation, *rest))

    def add_mlp(mlp: MLP, prefix: str, target: int) -> None:
        last = len(mlp.widths()) - 1
        for index, (fan_in, fan_out) in enumerate(mlp.widths()):
            activation = ACTIVATIONS.index(mlp.activation) if index < last else -1
            head = (target if index == last else -1, 0, 0, int(mlp.dueling and index == last))
            add(f"{prefix}weight{index}", f"{prefix}bias{index}", fan_in, fan_out, activation, int(index == 0), *head)

    match network:
        case QuantileNetwork():
            layer = network.layer
            add("seen.weight", "seen.bias", network.inputs, layer, RELU, 1, -1, 0, 0, 0)
            quantiles = network.size, network.acting_quantiles  # embeddings stand behind the row
            add("joined.weight.mean", "joined.bias.mean", layer, layer, RELU, 0, -1, *quantiles, 0)
            add("head.weight.mean", "head.bias.mean", layer, network.outputs + 1, -1, 0, 0, 0, 0, 1)
        case ActorCritic():
            outputs = network.distribution.outputs
            add_mlp(network.policy, "policy.", 0)
            if isinstance(network.distribution, SquashedGaussian):
                add("", "log_std", 0, outputs // 2, -1, 1, outputs // 2, 0, 0, 0)
            add_mlp(network.value, "value.", outputs)
        case MLP():
            add_mlp(network, "", 0)
    return np.array(program, np.int64)


class CompiledNetwork:
    """A network as compiled code computes it, one agent after the other."""

    def __init__(self, network: Any, worlds: int) -> None:
        self._normalized = network if isinstance(network, NormalizedNetwork) else None
        self._network = network.network if self._normalized else network
        self.program = network_program(self._network)
        heads = self.program[self.program[:, 7] >= 0]
        outputs, rows = int((heads[:, 7] + heads[:, 1] - heads[:, 10]).max()), int(self.program[:, 9].max(initial=1))
        self.room = (
            np.empty((worlds, self._network.inputs), np.float32),
            np.empty((worlds, outputs), np.float32),
            np.empty((3, worlds * rows * int(self.program[:, :3].max())), np.float32),
        )
        """Inputs, outputs and hidden layers of one agent: see `Scratch`."""
        self._embedded = np.empty((0, 0), np.float32)
        """(N, P + K·L) weights of a quantile network and the embeddings that follow from them."""

    def read(self, rows: Tensor) -> tuple[Array, Array, Array]:
        """Return what the kernels read of rows (N, P): weights, centre and scale of the inputs, (N, D) or (N, 0).

        The weights of a quantile network are written where those of the call before were: fresh memory takes longer.
        """
        parts = (rows, rows[:, :0], rows[:, :0]) if self._normalized is None else self._normalized.split(rows)
        weights, centre, scale = (part.contiguous().numpy() for part in parts)
        if isinstance(self._network, QuantileNetwork):
            network, layout = self._network, self._network.layout
            line = dict(zip(layout.names, layout.offsets, strict=True))
            layer = np.array(
                [COSINES, network.layer, width(network.layer), line["cosines.weight"], line["cosines.bias"]]
            )
            shape = len(weights), network.size + network.acting_quantiles * network.layer
            if self._embedded.shape != shape:
                self._embedded = np.empty(shape, np.float32)
            self._embedded[:, : network.size] = weights
            weights = self._embedded
            kernels.embed_quantiles(layer, network.size, network.acting_quantiles, weights)
        return weights, centre, scale


def choice_of(spec: Any) -> Choice | None:
    """Return how an algorithm chooses; None where it has a `choose` of its own, which only Python can call."""
    same = _owner(type(spec), "choose") is _owner(type(spec), "choice")
    choice: Choice | None = spec.choice if same else None
    return choice


def _owner(cls: type, name: str) -> type | None:
    """Return the class among a class and its bases that defines a name."""
    return next((own for own in cls.__mro__ if name in vars(own)), None)
