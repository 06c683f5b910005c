from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.core.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.core.seeding import Purpose
from parallel_agents.workflows.network import HOST_NAMES, RED_AGENTS, VERSIONS, NetworkWorlds, Quirks
from parallel_agents.workflows.network import scenario as sc

REDS = tuple(RED_AGENTS[w % 3] for w in range(1000))


def actions(worlds: int, turns: int = 100, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 145, (turns, worlds))


def record(worlds: NetworkWorlds, plan: np.ndarray, epoch: int = 0) -> tuple[np.ndarray, ...]:
    """Return everything that can be read during an episode."""
    steps = [(worlds.reset(epoch), np.zeros(worlds.n_worlds), worlds.access, worlds.ot_running)]
    for chosen in plan:
        observations, rewards, _ = worlds.step(chosen)
        steps.append((observations, rewards, worlds.access, worlds.ot_running))
    observations, rewards, access, running = (np.stack(column) for column in zip(*steps, strict=True))
    return observations, rewards[1:], access, running


def same(first: tuple[np.ndarray, ...], second: tuple[np.ndarray, ...]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("green", [False, True])
def test_a_world_gives_the_same_bytes_alone_as_in_a_batch(green):
    plan = actions(1000)
    together = record(NetworkWorlds(1000, red=REDS, green=green, seed=3), plan, epoch=5)
    for w in (0, 1, 2, 500, 997, 998, 999):
        alone = NetworkWorlds(1, red=REDS[w], green=green, seed=3, first_world=w)
        assert same(record(alone, plan[:, [w]], epoch=5), tuple(part[:, [w]] for part in together))


def test_an_episode_depends_on_seed_epoch_and_purpose_only():
    plan = actions(20, 40)
    base = record(NetworkWorlds(20, red="Meander", seed=1), plan, epoch=2)
    worlds = NetworkWorlds(20, red="Meander", seed=1)
    record(worlds, plan, epoch=7)
    assert same(record(worlds, plan, epoch=2), base)  # whatever was played before
    assert not same(record(worlds, plan, epoch=3), base)
    assert not same(record(NetworkWorlds(20, red="Meander", seed=2), plan, epoch=2), base)
    other = NetworkWorlds(20, red="Meander", seed=1, purpose=Purpose.EVALUATION_WORLD)
    assert not same(record(other, plan, epoch=2), base)


@pytest.mark.parametrize("steps", [30, 50, 100])
def test_an_episode_ends_after_its_steps_and_not_before(steps):
    """A historical fault: no episode ever ended, and no world was ever reset."""
    worlds = NetworkWorlds(3, steps=steps)
    with pytest.raises(ContractError, match=r"is over or not begun: call reset\(epoch\)"):
        worlds.step([0, 0, 0])
    for epoch in (0, 1):
        assert not worlds.reset(epoch).any()
        ends = [worlds.step([0, 0, 0])[2].tolist() for _ in range(steps)]
        assert ends == [[False] * 3] * (steps - 1) + [[True] * 3]
        with pytest.raises(ContractError, match=rf"the episode of {steps} steps is over"):
            worlds.step([0, 0, 0])


def test_short_episodes_are_prefixes_of_long_ones():
    plan = actions(10)
    long = record(NetworkWorlds(10), plan)
    short = record(NetworkWorlds(10, steps=30), plan[:30])
    assert same(short, tuple(part[: len(s)] for part, s in zip(long, short, strict=True)))


def test_a_reset_begins_with_a_clean_network():
    worlds = NetworkWorlds(5)
    clean = worlds.reset(0), worlds.access
    for _ in range(100):
        worlds.step([0] * 5)
    assert worlds.access.sum() > clean[1].sum()
    assert not worlds.ot_running.any()
    assert not worlds.reset(1).any()
    assert (worlds.access == clean[1]).all()
    assert worlds.ot_running.all()


def test_a_late_start_equals_turns_in_which_blue_sleeps():
    late = NetworkWorlds(20, red="Meander", late_start=40)
    on_time = NetworkWorlds(20, red="Meander")
    on_time.reset(0)
    for _ in range(40):
        observations, _, _ = on_time.step([0] * 20)
    assert (late.reset(0) == observations).all()
    assert late.turn == 40
    plan = actions(20, 60)
    for chosen in plan:
        a, b = late.step(chosen), on_time.step(chosen)
        assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert a[2].all()


def test_green_scans_users_and_enterprise_half_of_the_time():
    worlds = NetworkWorlds(2000, red="Sleep", green=True, steps=30)
    worlds.reset(0)
    scans = np.zeros(13)
    for _ in range(30):
        observations, rewards, _ = worlds.step([0] * 2000)
        assert not rewards.any()
        bits = observations.reshape(-1, 13, 4)
        assert not bits[..., 1:].any()
        scans += bits[..., 0].sum(axis=0)
    targets = [h for h, name in enumerate(HOST_NAMES) if name.startswith(("User", "Enterprise"))]
    assert np.flatnonzero(scans).tolist() == targets
    expected = 30 * 2000 / 2 / len(targets)
    assert (np.abs(scans[targets] - expected) < 5 * np.sqrt(expected)).all()


def test_green_and_red_use_independent_draws():
    worlds = NetworkWorlds(8000, red="Meander", green=True)
    worlds.reset(0)
    worlds.step([0] * 8000)
    observations, _, _ = worlds.step([0] * 8000)
    busy = observations.reshape(8000, 13, 4)[..., 0].sum(axis=1)
    for target in ("User0", "User4"):
        scanned = [action == f"DiscoverNetworkServices:{target}" for action in worlds.red_actions]
        elsewhere = (busy[scanned] == 2).mean()  # green acts, and on one of the seven other hosts
        assert abs(elsewhere - 0.5 * 7 / 8) < 0.06


def test_95_percent_of_reverse_shells_are_detected():
    worlds = NetworkWorlds(6000, version="debugged")
    worlds.reset(0)
    for _ in range(3):
        observations, _, _ = worlds.step([0] * 6000)
    by_shell = [action.endswith(("User2", "User3")) for action in worlds.red_actions]  # no SSH there
    noticed = observations.reshape(6000, 13, 4)[by_shell, :, 1].any(axis=1)
    assert worlds.red_success[by_shell].all()
    assert abs(noticed.mean() - 0.95) < 4 * np.sqrt(0.95 * 0.05 / len(noticed))


@pytest.mark.parametrize("hides", [True, False])
def test_greens_scan_can_hide_reds_exploit(hides):
    """Green's events join red's on the same host; red's own draws do not change."""
    quirks = Quirks(scan_hides_exploit=hides)
    quiet, noisy = (NetworkWorlds(3000, quirks=quirks, green=green) for green in (False, True))
    attacked = []
    for worlds in (quiet, noisy):
        worlds.reset(0)
        for _ in range(3):
            observations, _, _ = worlds.step([0] * 3000)
        attacked.append(observations.reshape(3000, 13, 4)[..., 1].any(axis=1))
    assert quiet.red_actions == noisy.red_actions
    by_shell = [action.endswith(("User2", "User3")) for action in quiet.red_actions]  # no SSH there
    hidden = (attacked[0] & ~attacked[1])[by_shell].sum()
    assert not (attacked[1] & ~attacked[0]).any()
    assert (hidden > 20) if hides else (hidden == 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(RED_AGENTS), st.sampled_from(sorted(VERSIONS)), st.booleans())
def test_invariants_of_observations_rewards_and_access(seed, red, version, green):
    worlds = NetworkWorlds(4, red=red, version=version, green=green, seed=seed, steps=50)
    plan = actions(4, 50, seed)
    observations, rewards, access, running = record(worlds, plan)
    bits = observations.reshape(51, 4, 13, 4)
    assert (bits[..., 1] <= bits[..., 0]).all()  # an attack is an activity
    assert (bits[..., 1] & bits[..., 2] & ~bits[..., 3] == 0).all()
    assert (access[:, :, sc.USER0] == 2).all()
    assert (access[:, :, sc.DEFENDER] == 0).all()
    costs = np.array([host.cost for host in sc.HOSTS])
    counted = access[1:] == 2 if worlds.quirks.user_sessions_are_free else access[1:] > 0
    tenths = counted @ costs + 100 * ~running[1:] + 10 * (plan >= 132)
    assert (rewards == -tenths / 10).all()


def test_writing_to_returned_arrays_does_not_change_the_worlds():
    worlds = NetworkWorlds(2)
    worlds.reset(0)
    for _ in range(20):
        worlds.step([0, 0])
    before = worlds.access
    worlds.access[:] = 0
    worlds.ot_running[:] = True
    worlds.blue_success[:] = 0
    worlds.red_success[:] = 0
    assert (worlds.access == before).all()
    assert not worlds.ot_running.all()
    assert worlds.red == ("B_line", "B_line")


@pytest.mark.parametrize("bad", [145, -1, 10**6])
def test_an_invalid_action_is_refused_and_changes_nothing(bad):
    worlds, untouched = NetworkWorlds(3), NetworkWorlds(3)
    worlds.reset(0)
    untouched.reset(0)
    with pytest.raises(ActionError, match=rf"action {bad} of world 2 is not one of blue's 145: .* from 0 to 144"):
        worlds.step([139, 5, bad])
    a, b = worlds.step([1, 2, 3]), untouched.step([1, 2, 3])
    assert all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("bad", [[0, 0], [[0, 0, 0]], 0, [0.0, 1.0, 2.0], ["a", "b", "c"], [True, False, True]])
def test_actions_of_the_wrong_shape_or_type_are_refused(bad):
    worlds = NetworkWorlds(3)
    worlds.reset(0)
    with pytest.raises(ShapeError, match=r"give one whole number per world, shape \(3,\)"):
        worlds.step(bad)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"n_worlds": 0}, "n_worlds is 0: at least one world is needed"),
        ({"n_worlds": 2, "red": ["Sleep"]}, "1 red agents for 2 worlds: name one, or one per world"),
        ({"n_worlds": 2, "late_start": 100}, "late_start is 100 of 100 steps"),
        ({"n_worlds": 2, "late_start": -1}, "late_start is -1"),
        ({"n_worlds": 2, "steps": 0}, "late_start is 0 of 0 steps"),
        ({"n_worlds": 2, "first_world": -1}, "first_world is -1"),
        ({"n_worlds": 2, "version": "tail"}, "version 'tail' is unknown"),
        ({"n_worlds": 2, "seed": -1}, "seed -1 is out of range"),
    ],
)
def test_invalid_settings_are_refused(settings_, message):
    with pytest.raises(ConfigError, match=message):
        NetworkWorlds(**settings_)


def test_a_negative_epoch_is_refused():
    with pytest.raises(ConfigError, match="epoch is -1: epochs are numbered from 0"):
        NetworkWorlds(1).reset(-1)
