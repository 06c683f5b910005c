"""A game in which the test chooses both sides' actions, and the recordings if they are beside the checkout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, VERSIONS, Quirks
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.red import KIND_NAMES, SWEEP, RedMove, red_id
from parallel_agents.workflows.network.scenario import compile_rules
from parallel_agents.workflows.network.state import NO_EXPLOIT, NO_HOST, initial_state, write_access
from parallel_agents.workflows.network.step_kernels import replay_step

ACTIVITY = {"00": "none", "10": "scan", "11": "exploit"}
MEMORY = {"00": "no", "10": "unknown", "01": "user", "11": "privileged"}


class Game:
    """One world in which the test chooses both sides' actions."""

    def __init__(self, quirks: Quirks | None = None, red: str = "Sleep") -> None:
        self.rules = compile_rules(quirks or Quirks())
        self.state = initial_state(np.array([red_id(red)], np.int8))
        self.bits = np.zeros(52, np.uint8)
        self.reward, self.verdict = 0.0, 0
        self.green_on = NO_HOST

    def turn(
        self, blue: str = "Sleep", red: str = "Sleep", exploit: str | None = None, *, detected: bool = True
    ) -> Game:
        kind_name, _, target_name = red.partition(":")
        kind = KIND_NAMES.index(kind_name)
        target = (sc.SUBNETS if kind == SWEEP else HOST_NAMES).index(target_name) if target_name else 0
        code = sc.EXPLOIT_NAMES.index(exploit) if exploit else NO_EXPLOIT
        action = ACTION_NAMES.index(blue)
        move = RedMove(kind, target, code, detected)
        self.verdict, cost = replay_step(self.state, self.rules, action, move, self.green_on, self.bits)
        self.reward = -cost / 10
        return self

    def scan(self, host: str, blue: str = "Sleep") -> Game:
        return self.turn(blue, f"DiscoverNetworkServices:{host}")

    def exploit(self, host: str, exploit: str, blue: str = "Sleep", *, detected: bool = True) -> Game:
        return self.turn(blue, f"ExploitRemoteService:{host}", exploit, detected=detected)

    def escalate(self, host: str, blue: str = "Sleep") -> Game:
        return self.turn(blue, f"PrivilegeEscalate:{host}")

    def take(self, host: str) -> Game:
        """Red scans, exploits and escalates on a host with an SSH server."""
        return self.scan(host).exploit(host, "SSHBruteForce").escalate(host)

    def _pair(self, host: str, first: int) -> str:
        at = 4 * HOST_NAMES.index(host) + first
        return f"{self.bits[at]}{self.bits[at + 1]}"

    def activity(self, host: str) -> str:
        return ACTIVITY[self._pair(host, 0)]

    def memory(self, host: str) -> str:
        return MEMORY[self._pair(host, 2)]

    def access(self, host: str) -> int:
        out = np.zeros((1, sc.N_HOSTS), np.uint8)
        write_access(self.state, out)
        return int(out[0, HOST_NAMES.index(host)])

    def ports(self, host: str) -> set[int]:
        """Return the ports that red remembers of a host."""
        known = int(self.state["known_ports"][0, HOST_NAMES.index(host)])
        return {port for i, port in enumerate(sc.PORTS) if known >> i & 1}

    @property
    def red_succeeded(self) -> bool:
        return int(self.state["red_success"][0]) == 1

    @property
    def blue_success(self) -> str:
        return "FTU"[int(self.state["blue_success"][0])]

    @property
    def service(self) -> bool:
        return bool(self.state["ot_running"][0])


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one torch thread, as every run of the library does; with two, small matrices are slower."""
    torch.set_num_threads(1)


@pytest.fixture
def game() -> Callable[..., Game]:
    return Game


@pytest.fixture
def recordings() -> dict[str, Path]:
    """Return the recorded episodes per version of the simulator; skip the test if they are absent."""
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    files = {version: folder / f"cage2_{version}.jsonl.gz" for version in VERSIONS}
    if not all(file.is_file() for file in files.values()):
        pytest.skip("the recordings are not beside the checkout")
    return files
