"""ACT: batched inference, exploration, the draws of both."""

from parallel_agents.acting.draws import Draws
from parallel_agents.acting.frames import Frames
from parallel_agents.acting.inference import Inference
from parallel_agents.acting.parts import flat_shape, flattened, split
from parallel_agents.acting.policies import EPSILON_SLOTS, asked, discrete, epsilon_greedy, gaussian, greedy, squash
from parallel_agents.acting.recall import Recall

__all__ = [
    "EPSILON_SLOTS",
    "Draws",
    "Frames",
    "Inference",
    "Recall",
    "asked",
    "discrete",
    "epsilon_greedy",
    "flat_shape",
    "flattened",
    "gaussian",
    "greedy",
    "split",
    "squash",
]
