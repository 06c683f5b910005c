"""The ring against a slow model of it made of lists: same samples for same serials, episodes never mixed."""

import copy
import itertools
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Transitions
from parallel_agents.execution.watchdog import resident_bytes
from parallel_agents.replay import Ring, RingShape, TransitionRing
from parallel_agents.replay.ring import BUCKETS, _order_by_place

GAMMA = 0.5  # sums of small whole rewards are then exact in every order
SIZE = 2  # an observation: its episode's number, and its place in it


# -- the slow model -------------------------------------------------------------------------------------------


@dataclass
class Act:
    """What an agent did in one world, and what came of it."""

    row: int
    world: int
    at: int
    """Place of its observation in the episode."""
    action: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    to: int | None = None
    """Place of what it led to, once that is known."""

    @property
    def over(self):
        return self.terminated or self.truncated

    @property
    def known(self):
        return self.to is not None or self.terminated


@dataclass
class Episode:
    seen: list = field(default_factory=list)
    acts: list = field(default_factory=list)
    foretold: object = None
    """What a world that goes on showed at the end of an epoch, until its next turn shows it again."""
    settled: bool = False
    """Its last act has ended it, and what that led to is known."""

    def window(self, place, frames):
        shown = [*self.seen, self.foretold]
        places = range(place - frames + 1, place + 1)
        return [number for k in places for number in (shown[k] if k >= 0 else [0.0] * SIZE)]


class Slow:
    """One agent's memory."""

    def __init__(self, turns, worlds, frames):
        self.turns, self.frames = turns, frames
        self.row = 0
        self.episodes = [Episode() for _ in range(worlds)]
        self.acts = []

    def add(self, observations, actions, rewards, terminated, truncated, acted, first):
        for w, observation in enumerate(observations):
            if first[w]:
                self._leave(w)
                self.episodes[w] = Episode()
            episode = self.episodes[w]
            episode.seen.append(observation)
            self._lead(episode)
            if acted[w]:
                episode.acts.append(Act(self.row, w, len(episode.seen) - 1, actions[w]))
                self.acts.append((episode, episode.acts[-1]))
            if episode.acts and not episode.settled:
                last = episode.acts[-1]
                last.reward += rewards[w]
                last.terminated |= terminated[w]
                last.truncated |= truncated[w]
        self.row += 1

    def close(self, observations, *, ended):
        for w, observation in enumerate(observations):
            episode = self.episodes[w]
            if ended and episode.acts and not episode.settled and not episode.acts[-1].terminated:
                episode.acts[-1].truncated = True
            if ended:
                episode.seen.append(observation)
                self._lead(episode)
                episode.settled = True
            elif episode.acts and not episode.settled:
                episode.foretold = observation
                episode.acts[-1].to = len(episode.seen)
        self.row += ended
        self._forget(self.row - self.turns + (not ended))

    def _lead(self, episode):
        """The newest observation is what the open act led to."""
        if episode.acts and not episode.settled:
            episode.acts[-1].to = len(episode.seen) - 1
            episode.settled = episode.acts[-1].over

    def _leave(self, w):
        """A new episode starts: what was only foretold of the old one is gone, and so is an act that led nowhere."""
        episode = self.episodes[w]
        if episode.acts:
            last = episode.acts[-1]
            if last.to == len(episode.seen):
                last.to = last.to - 1 if last.to - 1 > last.at else None
            if not last.known:
                self.acts = [pair for pair in self.acts if pair[1] is not last]

    def _forget(self, row):
        self.acts = [pair for pair in self.acts if pair[1].row >= row]

    def kept(self):
        """Acts that can be sampled, in order."""
        self._forget(self.row - self.turns)
        acts = sorted(self.acts, key=lambda pair: (pair[1].row, pair[1].world))
        newest = [act for _, act in acts if act.row == self.row - 1]
        if any(not act.known for act in newest):
            acts = [pair for pair in acts if pair[1].row != self.row - 1]
        return acts

    def sample(self, episode, act, n_step):
        """state, action, return, next state and discount of an act, step by step."""
        total, factor, place = 0.0, 1.0, act.at
        for step, now in enumerate(episode.acts[episode.acts.index(act) :]):
            if step and not now.known:
                break
            total += factor * now.reward
            factor *= GAMMA
            place = now.at if now.to is None else now.to
            if now.over or step + 1 == n_step:
                factor = 0.0 if now.terminated else factor
                break
        return episode.window(act.at, self.frames), act.action, total, episode.window(place, self.frames), factor


# -- a made-up life -------------------------------------------------------------------------------------------


class Life:
    """Random episodes of N agents in W worlds, told to the ring and to the slow model alike.

    autoreset: a finished world shows its last observation once more, idle, and starts afresh after that;
    otherwise it idles until the epoch is closed. `abrupt` worlds are left without any of that.
    """

    def __init__(self, seed, *, agents, worlds, turns, frames, autoreset, abrupt=False):
        self.some = random.Random(seed)
        self.agents, self.worlds, self.autoreset, self.abrupt = agents, worlds, autoreset, abrupt
        shape = RingShape(capacity=turns * worlds, observation=(SIZE,), worlds=worlds, frames=frames)
        self.ring = Ring(shape, agents)
        self.slow = [Slow(turns, worlds, frames) for _ in range(agents)]
        self.number = 0
        self.episode = [[0] * worlds for _ in range(agents)]
        self.place = [[0] * worlds for _ in range(agents)]
        self.alive = [[True] * worlds for _ in range(agents)]
        self.first = [[True] * worlds for _ in range(agents)]
        self._restart(lambda n, w: True)

    def _restart(self, which):
        for n in range(self.agents):
            for w in range(self.worlds):
                if which(n, w):
                    self.number += 1
                    self.episode[n][w], self.place[n][w] = self.number, 0
                    self.alive[n][w] = self.first[n][w] = True

    def observations(self):
        return [
            [[float(self.episode[n][w]), float(self.place[n][w] + 1)] for w in range(self.worlds)]
            for n in range(self.agents)
        ]

    def turn(self):
        some, shape = self.some, [(n, w) for n in range(self.agents) for w in range(self.worlds)]

        def table(make):
            return [[make(n, w) for w in range(self.worlds)] for n in range(self.agents)]

        present = [some.random() < 0.95 for _ in range(self.agents)]
        if self.abrupt:
            self._restart(lambda n, w: present[n] and some.random() < 0.15)
        alive = table(lambda n, w: self.alive[n][w])
        idle = [(n, w) for n, w in shape if present[n] and not alive[n][w]]
        acted = table(lambda n, w: alive[n][w] and some.random() < 0.75)
        rewards = table(lambda n, w: float(some.randint(-3, 3)) if alive[n][w] else 0.0)
        terminated = table(lambda n, w: alive[n][w] and some.random() < 0.1)
        truncated = table(lambda n, w: alive[n][w] and not terminated[n][w] and some.random() < 0.1)
        actions = table(lambda n, w: some.randint(0, 9))
        seen, first = self.observations(), [list(row) for row in self.first]
        self.ring.add(
            Transitions(
                observations=np.array(seen, np.float32),
                actions=np.array(actions),
                rewards=np.array(rewards, np.float32),
                terminated=np.array(terminated),
                truncated=np.array(truncated),
                valid=np.array(acted),
                first=np.array(first),
                present=np.array(present),
                version=3,
            )
        )
        for n in range(self.agents):
            if present[n]:
                self.slow[n].add(seen[n], actions[n], rewards[n], terminated[n], truncated[n], acted[n], first[n])
                for w in range(self.worlds):
                    self.first[n][w] = False
                    self.place[n][w] += alive[n][w]
                    self.alive[n][w] = alive[n][w] and not (terminated[n][w] or truncated[n][w])
        if self.autoreset:
            self._restart(lambda n, w: (n, w) in idle)

    def close(self, *, ended):
        seen = self.observations()
        self.ring.close(np.array(seen, np.float32), ended=ended)
        for n in range(self.agents):
            self.slow[n].close(seen[n], ended=ended)
        if ended:
            self._restart(lambda n, w: True)

    def compare(self, n_step):
        samples = [[slow.sample(episode, act, n_step) for episode, act in slow.kept()] for slow in self.slow]
        assert self.ring.sizes().tolist() == [len(own) for own in samples]
        for n, own in enumerate(samples):
            alone = self.ring.agent(n)
            if own:
                serials = alone.tail[:, None] + np.arange(len(own))
                batch = alone.gather(serials, n_step=n_step, gammas=np.full(1, GAMMA))
                states, actions, returns, next_states, discounts = (
                    np.array(column) for column in zip(*own, strict=True)
                )
                assert batch["states"][0].tolist() == states.tolist()
                assert batch["actions"][0].tolist() == actions.tolist()
                assert batch["returns"][0].tolist() == returns.tolist()
                assert batch["discounts"][0].tolist() == discounts.tolist()
                assert batch["next_states"][0].tolist() == next_states.tolist()
                self.check_windows(batch)

    def check_windows(self, batch):
        """Whatever the model says: every frame of a sample is of one episode, without gaps and in order."""
        states, following = (
            batch[name][0].reshape(len(batch[name][0]), -1, SIZE) for name in ("states", "next_states")
        )
        for state, after in zip(states, following, strict=True):
            assert len({episode for episode in [*state[:, 0], *after[:, 0]] if episode}) == 1
            for window in (state, after):
                places = [place for episode, place in window if episode]
                assert all(0 <= b - a <= 1 for a, b in itertools.pairwise(places))
            assert after[-1, 1] >= state[-1, 1]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 3),
    worlds=st.integers(1, 4),
    turns=st.sampled_from([1, 2, 3, 5, 8, 20]),
    frames=st.integers(1, 4),
    n_step=st.integers(1, 4),
    autoreset=st.booleans(),
    abrupt=st.booleans(),
    epochs=st.lists(st.integers(0, 12), min_size=1, max_size=5),
)
def test_the_ring_gives_the_samples_of_the_slow_model(
    seed, agents, worlds, turns, frames, n_step, autoreset, abrupt, epochs
):
    life = Life(seed, agents=agents, worlds=worlds, turns=turns, frames=frames, autoreset=autoreset, abrupt=abrupt)
    for length in epochs:
        for _ in range(length):
            life.turn()
            if life.some.random() < 0.3:
                life.compare(n_step)
        life.close(ended=not autoreset)
        life.compare(n_step)


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_epochs_that_other_rings_stored_are_appended_as_if_stored_turn_by_turn(seed, spare, frames, lengths):
    draws = generator(seed, Purpose.SAMPLE)
    cuts = (slice(0, 2), slice(2, 3), slice(3, 5))
    extras = {"value": (), "priority": ()}

    def ring(worlds, turns):
        return Ring(RingShape(turns * worlds, (SIZE,), worlds=worlds, frames=frames, extras=extras), agents=2)

    whole, joined = (ring(5, 6 + spare) for _ in range(2))
    for length in lengths:
        parts = [ring(cut.stop - cut.start, 6) for cut in cuts]
        alive = np.ones((2, 5), np.bool_)
        for turn in range(length):
            acted = alive & (draws.random((2, 5)) < 0.7)
            ends = alive & (draws.random((2, 5)) < 0.3)
            columns = {
                "observations": draws.random((2, 5, SIZE), np.float32),
                "actions": draws.integers(0, 3, (2, 5)),
                "rewards": draws.random((2, 5), np.float32),
                "terminated": ends,
                "truncated": np.zeros_like(ends),
                "valid": acted,
                "first": np.full((2, 5), turn == 0),
            }
            value = draws.random((2, 5), np.float32)
            for one, cut in ((whole, slice(None)), *zip(parts, cuts, strict=True)):
                own = {name: column[:, cut] for name, column in columns.items()}
                rest = {"present": np.ones(2, np.bool_), "version": 7, "extras": {"value": value[:, cut]}}
                one.add(Transitions(**own, **rest))
            alive = alive & ~ends
        last = draws.random((2, 5, SIZE), np.float32)
        for one, cut in ((whole, slice(None)), *zip(parts, cuts, strict=True)):
            one.close(last[:, cut], ended=True)
        joined.append(slice(0, 2), [(cut, part.whole()) for cut, part in zip(cuts, parts, strict=True)])
        for n in range(2):
            wanted, found = whole.live(n), joined.live(n)
            assert {name: found[name].tolist() for name in wanted} == {name: wanted[name].tolist() for name in wanted}
            drawable = np.arange(whole.tail[n], whole.head[n]) % whole.starts.shape[1]
            assert joined.starts[n, drawable].tolist() == whole.starts[n, drawable].tolist()


def test_an_epoch_that_is_longer_than_the_buffer_is_refused():
    short, long = (Ring(RingShape(turns, (1,)), agents=1) for turns in (3, 9))
    for turn in range(4):
        long.add(one_turn(turn, first=turn == 0))
    with pytest.raises(ShapeError, match="an epoch of 4 rows does not fit into a buffer of 3"):
        short.append(slice(0, 1), [(slice(0, 1), long.whole())])


# -- single cases, by hand ------------------------------------------------------------------------------------


def one_turn(observation, *, reward=0.0, terminated=False, truncated=False, acted=True, first=False, action=0):
    """A turn of one agent in one world, or of several worlds where lists are given."""
    columns = {
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "acted": acted,
        "first": first,
        "action": action,
    }
    wide = np.atleast_1d(np.asarray(observation, np.float32))
    spread = {name: np.broadcast_to(np.asarray(value), wide.shape)[None].copy() for name, value in columns.items()}
    return Transitions(
        observations=wide[None, :, None],
        actions=spread["action"].astype(np.int64),
        rewards=spread["reward"].astype(np.float32),
        terminated=spread["terminated"].astype(np.bool_),
        truncated=spread["truncated"].astype(np.bool_),
        valid=spread["acted"].astype(np.bool_),
        first=spread["first"].astype(np.bool_),
        present=np.ones(1, np.bool_),
        version=0,
    )


def ring_of(capacity=8, **options):
    return Ring(RingShape(capacity=capacity, observation=(1,), **options), 1)


def everything(ring, n_step=1, gamma=GAMMA):
    serials = ring.tail[:, None] + np.arange(ring.sizes()[0])
    batch = ring.gather(serials, n_step=n_step, gammas=np.full(1, gamma))
    return {
        name: column[0].squeeze(-1).tolist() if name.endswith("states") else column[0].tolist()
        for name, column in batch.items()
    }


def close(ring, *observations, ended):
    ring.close(np.array([[[value] for value in observations]], np.float32), ended=ended)


def test_what_a_frozen_agent_earns_goes_to_its_last_action():
    ring = ring_of()
    ring.add(one_turn(1, reward=1.0, first=True, acted=False))  # nothing done yet: nobody to give it to
    ring.add(one_turn(2, reward=2.0, action=5))
    ring.add(one_turn(3, reward=4.0, acted=False))
    ring.add(one_turn(4, reward=8.0, acted=False))
    ring.add(one_turn(5, reward=16.0, action=6))
    close(ring, 6.0, ended=True)
    batch = everything(ring)
    assert batch["actions"] == [5, 6]
    assert batch["returns"] == [14.0, 16.0]
    assert batch["states"] == [2.0, 5.0]
    assert batch["next_states"] == [5.0, 6.0]


def test_an_end_that_comes_to_a_frozen_agent_ends_its_last_action():
    ring = ring_of()
    ring.add(one_turn(1, reward=1.0, first=True))
    ring.add(one_turn(2, acted=False))
    ring.add(one_turn(3, reward=-5.0, acted=False, terminated=True))
    ring.add(one_turn(4, reward=99.0, first=True, terminated=True))
    batch = everything(ring)
    assert batch["returns"] == [-4.0, 99.0]
    assert batch["discounts"] == [0.0, 0.0]
    assert ring.terminated[0, :4, 0].tolist() == [True, False, False, True]


def test_terminations_and_truncations_are_stored_separately():
    ring = ring_of(worlds=3)
    ring.add(one_turn([1, 2, 3], first=True, terminated=[True, False, False], truncated=[False, True, False]))
    close(ring, 4.0, 5.0, 6.0, ended=True)
    assert ring.terminated[0, 0].tolist() == [True, False, False]
    assert ring.truncated[0, 0].tolist() == [False, True, True]  # the third was cut off by the epoch's end
    batch = everything(ring)
    assert batch["discounts"] == [0.0, GAMMA, GAMMA]
    assert batch["next_states"] == [4.0, 5.0, 6.0]


def test_n_step_returns_worked_by_hand():
    ring = ring_of()
    for t in range(4):
        ring.add(one_turn(t, reward=2.0**t, first=t == 0, terminated=t == 3))
    close(ring, 9.0, ended=True)
    batch = everything(ring, n_step=3, gamma=0.5)
    # 1 + 2/2 + 4/4;  2 + 4/2 + 8/4, ended;  4 + 8/2, ended;  8, ended
    assert batch["returns"] == [3.0, 6.0, 8.0, 8.0]
    assert batch["discounts"] == [0.125, 0.0, 0.0, 0.0]
    assert batch["next_states"][0] == 3.0


def test_n_step_returns_reach_a_termination_without_a_next_row():
    """The next episode may start at once, or nothing at all may come after the end."""
    ring = ring_of()
    ring.add(one_turn(1, reward=1.0, first=True))
    ring.add(one_turn(2, reward=8.0, terminated=True))
    assert everything(ring, n_step=3)["returns"] == [5.0, 8.0]
    ring.add(one_turn(3, reward=100.0, first=True))
    assert everything(ring, n_step=3)["returns"] == [5.0, 8.0]
    assert everything(ring, n_step=3)["discounts"] == [0.0, 0.0]


def test_n_step_returns_stop_at_a_truncation_and_bootstrap():
    ring = ring_of()
    ring.add(one_turn(1, reward=1.0, first=True))
    ring.add(one_turn(2, reward=2.0, truncated=True))
    ring.add(one_turn(3, acted=False))  # what it led to, seen while idle
    ring.add(one_turn(7, reward=50.0, first=True))
    close(ring, 8.0, ended=False)
    batch = everything(ring, n_step=4)
    assert batch["returns"] == [2.0, 2.0, 50.0]
    assert batch["discounts"] == [0.25, 0.5, 0.5]
    assert batch["next_states"] == [3.0, 3.0, 8.0]


def test_a_turn_whose_next_observation_is_unknown_is_not_sampled_in_any_world():
    """One world's end in the newest turn must not let another world's open transition be drawn in its place."""
    ring = ring_of(worlds=2)
    ring.add(one_turn([1, 2], first=True))
    ring.add(one_turn([3, 4], terminated=[False, True]))
    assert ring.sizes().tolist() == [2]
    assert everything(ring)["states"] == [1.0, 2.0]
    close(ring, 5.0, 6.0, ended=False)
    assert ring.sizes().tolist() == [4]
    assert everything(ring)["next_states"] == [3.0, 4.0, 5.0, 6.0]


def test_an_open_transition_is_removed_when_a_new_episode_starts():
    ring = ring_of(worlds=2)
    ring.add(one_turn([1, 2], first=True))
    ring.add(one_turn([3, 4], action=[7, 8]))
    ring.add(one_turn([5, 6], first=[True, False]))
    assert everything(ring)["states"] == [1.0, 2.0, 4.0]
    assert everything(ring)["next_states"] == [3.0, 4.0, 6.0]
    assert ring.head[0] - ring.tail[0] == 5


def test_a_new_episode_is_never_the_next_state_of_an_old_one():
    """`close(ended=False)` foretells what the next turn shows; if an episode starts there, that was not so."""
    ring = ring_of()
    ring.add(one_turn(1, first=True))
    ring.add(one_turn(2))
    close(ring, 3.0, ended=False)
    assert everything(ring)["next_states"] == [2.0, 3.0]
    ring.add(one_turn(7, first=True))
    close(ring, 8.0, ended=False)
    assert everything(ring)["next_states"] == [2.0, 8.0]


def test_agents_that_are_not_present_store_nothing():
    ring = Ring(RingShape(capacity=4, observation=(1,)), 2)
    turn = one_turn(1, first=True, terminated=True)
    twice = {
        name: np.concatenate([getattr(turn, name)] * 2)
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "valid", "first")
    }
    ring.add(Transitions(**twice, present=np.array([True, False]), version=1))
    assert ring.sizes().tolist() == [1, 0]
    assert ring.pos.tolist() == [1, 0]


def test_a_copy_of_a_ring_has_rows_of_its_own():
    ring = ring_of()
    ring.add(one_turn(1, first=True))
    copied = copy.deepcopy(ring)
    copied.add(one_turn(2))
    ring.add(one_turn(3))
    assert [own.observations[0, :2, 0, 0].tolist() for own in (ring, copied)] == [[1, 3], [1, 2]]
    assert ring.pos.tolist() == copied.pos.tolist() == [2]


def test_old_turns_are_overwritten_but_their_frames_stay():
    ring = Ring(RingShape(capacity=3, observation=(1,), frames=3), 1)
    for t in range(1, 8):
        ring.add(one_turn(t, first=t == 1))
    close(ring, 8.0, ended=True)
    batch = ring.gather(ring.tail[:, None] + np.arange(2), n_step=1, gammas=np.ones(1))
    assert ring.sizes().tolist() == [2]  # three turns, one of them keeps the observation at the end
    assert batch["states"][0].tolist() == [[4, 5, 6], [5, 6, 7]]
    assert batch["next_states"][0].tolist() == [[5, 6, 7], [6, 7, 8]]


def test_an_agent_stores_the_same_alone_and_in_a_block():
    block, alone = Ring(RingShape(capacity=6, observation=(1,)), 3), ring_of(6)
    alone.add(one_turn(1, first=True))
    block.adopt(1, alone)
    view = block.agent(1)
    for t in range(2, 12):
        for ring in (view, alone):
            ring.add(one_turn(t, reward=t, terminated=t == 5, first=t == 6))
    assert everything(view) == everything(alone)
    assert block.sizes().tolist() == [0, 5, 0]
    one, other = view.live(0), block.live(1)
    assert all((one[name] == other[name]).all() for name in one)
    assert not block.observations[[0, 2]].any()


def test_adopting_a_ring_replaces_all_that_was_stored():
    """Rings that have not come round, that have, that were closed and that are empty, in place of each other."""
    shape = RingShape(capacity=4, observation=(1,), frames=2, extras={"value": ()})
    turns = {"empty": 0, "short": 2, "closed": 3, "round": 9}
    rings = {}
    for name, count in turns.items():
        rings[name] = Ring(shape, 1)
        for t in range(count):
            turn = one_turn(10 * count + t, first=t == 0)
            rings[name].add(replace(turn, extras={"value": np.full((1, 1), t + 1.0, np.float32)}))
        if name == "closed":
            close(rings[name], 7.0, ended=False)
    for before, after in itertools.product(rings.values(), repeat=2):
        block = Ring(shape, 2)
        block.adopt(1, before)
        block.adopt(1, after)
        view = block.agent(1)
        assert all((a == b).all() for a, b in zip(view.arrays, after.arrays, strict=True))
        assert (view.extras["value"] == after.extras["value"]).all()


def test_adopting_an_empty_ring_takes_no_memory():
    rows = 4_000_000
    block, alone = (Ring(RingShape(capacity=rows, observation=(16,)), 1) for _ in range(2))
    before = resident_bytes()
    block.adopt(0, alone)
    assert resident_bytes() - before < rows


# -- drawing --------------------------------------------------------------------------------------------------


def test_draws_are_uniform_over_the_stored_transitions():
    ring = ring_of(capacity=40, worlds=2)
    for t in range(57):
        ring.add(one_turn([t, t], first=t == 0, acted=[True, t % 3 > 0]))
    close(ring, 99.0, 99.0, ended=True)
    size = int(ring.sizes()[0])
    draws = generator(5, Purpose.NOISE).random((1, 200 * size))
    serials = ring.serials(draws)
    counts = np.bincount(serials[0] - ring.tail[0], minlength=size)
    assert len(counts) == size
    assert chisquare(counts).pvalue > 1e-3
    assert ring.serials(np.array([[0.0, np.nextafter(1.0, 0.0)]])).tolist() == [[ring.tail[0], ring.tail[0] + size - 1]]


@pytest.mark.parametrize("capacity", [100, 1_000_000])
def test_gathering_reads_only_the_drawn_rows(capacity):
    """Rows that were not drawn are not read, however many there are."""
    ring = ring_of(capacity=capacity)
    for t in range(50):
        ring.add(one_turn(t, reward=1.0, first=t == 0))
    asked = ring.serials(np.array([[0.1, 0.5]]))
    before = ring.gather(asked, n_step=1, gammas=np.ones(1))
    keep = {int(k) for k in asked[0]} | {int(k) + 1 for k in asked[0]}
    others = [r for r in range(capacity) if r not in keep]
    ring.observations[0, others] = np.nan
    ring.rewards[0, others] = np.nan
    after = ring.gather(asked, n_step=1, gammas=np.ones(1))
    assert all((before[name] == after[name]).all() for name in before)
    assert sum(column.nbytes for column in after.values()) < 100


@pytest.mark.parametrize("bad", [{"capacity": 0}, {"worlds": 0}, {"frames": 0}])
def test_bad_shapes_raise(bad):
    with pytest.raises(ConfigError, match="each must be at least 1"):
        RingShape(**{"capacity": 1, "observation": (1,), **bad})


def test_capacity_is_rounded_up_to_whole_turns():
    assert [RingShape(capacity, (1,), worlds=4).turns for capacity in (1, 4, 5, 8)] == [1, 1, 2, 2]


# -- one stream of transitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=12))
def test_next_states_are_right_wherever_episodes_begin(dtype, capacity, blocks):
    ring, states, after = TransitionRing(capacity, 1, [("number", "i8")], dtype), [], []
    for count, follows in blocks:
        start = float(after[-1]) if follows and after else 10.0 * len(states)
        states += [start + i for i in range(count)]
        after += [start + i + 1 for i in range(count)]
        number = np.arange(len(states) - count, len(states))
        ring.add(dtype(states[-count:])[:, None], dtype(after[-count:])[:, None], {"number": number})
        live = np.arange(ring.oldest, ring.added)
        found, found_after, records, serials = ring.gather(live % capacity)
        assert found.ravel().tolist() == states[-len(live) :]
        assert found_after.ravel().tolist() == after[-len(live) :]
        assert records["number"].tolist() == serials.tolist() == live.tolist()


def test_a_zero_with_another_sign_is_another_state():
    ring = TransitionRing(4, 1, [])
    ring.add(np.float32([[1.0], [0.0]]), np.float32([[-0.0], [2.0]]), {})
    assert np.signbit(ring.gather(np.array([0]))[1][0, 0])


@pytest.mark.parametrize("samples", [2, 3, 500, 3000])
@pytest.mark.parametrize("count", [1, 2, BUCKETS - 1, BUCKETS, BUCKETS + 1, 2 * BUCKETS, 2 * BUCKETS + 1, 10**6])
def test_samples_are_read_in_about_the_order_of_their_places(samples, count):
    draws = np.random.default_rng(count)
    places = np.append(draws.integers(0, count, samples - 2), [0, count - 1])
    order, room = np.full(len(places), -1), np.full(BUCKETS + 1, 7)  # the last number belongs to somebody else
    _order_by_place(places, count, order, room[:BUCKETS])
    assert sorted(order.tolist()) == list(range(len(places)))
    part = -(-count // min(BUCKETS, 2 * samples + 1)) * 2
    assert (np.maximum.accumulate(places[order]) - places[order] < max(1, part)).all()
    assert room[BUCKETS] == 7
