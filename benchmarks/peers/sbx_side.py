"""N independent DQN learners of SBX, Stable-Baselines3 in JAX: questions, answers and the loop are those of SB3.

SBX clips no gradients and has no double DQN: a little less work for SBX. Each model is compiled at its first update,
before anything is measured.
"""

from functools import partial

import jax
import sb3_side
import sbx
from answering import serve

if __name__ == "__main__":
    serve({"dqn": partial(sb3_side.dqn, sbx.DQN)}, f"sbx {sbx.__version__}, jax {jax.__version__}")
