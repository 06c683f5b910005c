"""Each numeric rule: it holds, and broken it shows.

A rule is broken by its mutant, and the same comparison that holds under the rule must then find a difference
in at least one of many shapes. Which shapes differ is a fact of the machine; that some do is why there is a rule.
"""

import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from parallel_agents.errors import NumericsError
from parallel_agents.learning.losses import weighted_mean
from parallel_agents.networks import MLP, numerics
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity


@pytest.fixture(autouse=True)
def _under_the_rules():
    numerics.require()


def numbers(*shape, seed=0):
    return torch.from_numpy(generator(seed, Purpose.NOISE).standard_normal(shape, np.float32))


def same(whole, parts):
    return whole.numpy().tobytes() == torch.cat(parts).numpy().tobytes()


def invariant(function, *inputs):
    """True if every agent's bytes are those it gets alone, in memory of its own."""
    alone = [function(*(x[n : n + 1].clone() for x in inputs)) for n in range(len(inputs[0]))]
    return same(function(*inputs), alone)


# -- activations ----------------------------------------------------------------------------------------------

SHAPES = list(itertools.product((2, 3, 5, 9), (1, 3, 5, 7), (2, 3, 5, 7, 9, 17)))
ACTIVATIONS = {
    "sigmoid": (numerics.sigmoid, torch.sigmoid),
    "silu": (numerics.silu, torch.nn.functional.silu),
    "elu": (numerics.elu, torch.nn.functional.elu),
    "softplus": (numerics.softplus, torch.nn.functional.softplus),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_invariant_and_those_of_torch_are_not(name):
    ours, theirs = ACTIVATIONS[name]
    blocks = [numbers(*shape) for shape in SHAPES]
    assert all(invariant(ours, x) for x in blocks)
    assert not all(invariant(theirs, x) for x in blocks)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients_are_right(name):
    ours, theirs = ACTIVATIONS[name]
    x = torch.cat([numbers(200) * 3, torch.tensor([-90.0, -1e-4, 1e-4, 90.0])]).requires_grad_()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    for mine, known in zip(torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad(theirs(x).sum(), x), strict=True):
        torch.testing.assert_close(mine, known, rtol=1e-5, atol=1e-6)


# -- widths ---------------------------------------------------------------------------------------------------


def widths_are_invariant(width):
    """Layers with 1 in or out, computed with the widths of a rule, alone and together."""
    holds = []
    for agents, rows, (into, out) in itertools.product(
        (2, 3, 5), (1, 3, 16, 33), ((1, 1), (1, 64), (64, 1), (33, 1), (17, 1), (7, 1))
    ):
        x, weight, bias = (
            numbers(agents, rows, width(into)),
            numbers(agents, width(out), width(into), seed=1),
            numbers(agents, 1, width(out), seed=2),
        )
        holds.append(invariant(numerics.linear, x, weight, bias))
    return all(holds)


def test_no_layer_is_computed_with_width_1():
    assert [numerics.width(n) for n in (1, 2, 3, 64)] == [2, 2, 3, 64]
    assert widths_are_invariant(numerics.width)


def test_mutant_width_1(monkeypatch):
    monkeypatch.setattr(numerics, "MIN_WIDTH", 1)
    assert not widths_are_invariant(numerics.width)


# -- rows per agent -------------------------------------------------------------------------------------------


def test_tiles_have_at_most_64_rows_and_one_world_keeps_one():
    assert [numerics.tile_rows(worlds) for worlds in (1, 2, 63, 64, 65, 1000)] == [1, 2, 63, 64, 64, 64]


def test_at_a_fixed_number_of_rows_the_other_rows_change_nothing_and_their_number_does():
    fixed, other = [], []
    for rows, (into, out) in itertools.product((1, 2, 4, 8), ((7, 2), (17, 5), (64, 64), (52, 64))):
        weight, bias, x = numbers(1, out, into), numbers(1, 1, out, seed=1), numbers(1, 64, into, seed=2)
        whole = numerics.linear(x, weight, bias)[:, :rows]
        swapped = torch.cat([x[:, :rows], numbers(1, 64 - rows, into, seed=3)], 1)
        fixed.append(torch.equal(numerics.linear(swapped, weight, bias)[:, :rows], whole))
        other.append(torch.equal(numerics.linear(x[:, :rows].contiguous(), weight, bias), whole))
    assert all(fixed)
    assert not all(other)


# -- alignment of rows ----------------------------------------------------------------------------------------


def alignments(agents=5):
    rows = MLP(3, (6,), 2).init(Identity((0,) * agents, tuple(range(agents))))
    return {(row.data_ptr() - rows.data_ptr()) % 128 for row in rows}


def test_every_row_has_the_same_alignment():
    assert alignments() == {0}


def test_mutant_rows_without_padding(monkeypatch):
    """Alignment is lost. In bytes this was never seen to differ: MKL's AUTO mode is a guard of its own."""
    monkeypatch.setattr(numerics, "ROW_MULTIPLE", 1)
    assert len(alignments()) > 1


# -- threads --------------------------------------------------------------------------------------------------


def means_are_invariant():
    return all(invariant(lambda x: weighted_mean(x, None), numbers(agents, 40_000)) for agents in (2, 3, 5))


def test_one_thread_gives_an_agent_the_mean_it_has_alone():
    assert means_are_invariant()


def test_mutant_two_threads():
    torch.set_num_threads(2)
    try:
        assert not means_are_invariant()
    finally:
        torch.set_num_threads(1)


# -- MKL ------------------------------------------------------------------------------------------------------

MKL_PROBE = """
import json, os, sys
import parallel_agents
if sys.argv[1] == "unset":
    del os.environ["MKL_CBWR"]
import torch
from parallel_agents.errors import NumericsError
from parallel_agents.networks import numerics

torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
differ = []
for agents in (3, 5, 7, 8, 9):
    for rows in (1, 2, 33):
        for into, out in ((17, 64), (31, 65), (33, 33), (243, 33), (243, 7), (128, 128)):
            x, w, b = (torch.randn(agents, *s, generator=g) for s in ((rows, into), (out, into), (1, out)))
            whole = numerics.linear(x, w, b)
            alone = torch.cat([numerics.linear(x[n:n+1].clone(), w[n:n+1].clone(), b[n:n+1].clone()) for n in range(agents)])
            if not torch.equal(whole, alone):
                differ.append((agents, rows, into, out))
try:
    numerics.require()
    said = ""
except NumericsError as error:
    said = str(error)
print(json.dumps({"mode": numerics.fingerprint()["mkl_mode"], "differ": differ, "said": said}))
"""


def ask_mkl(argument):
    # The oldest instruction set that MKL still has shows it on every machine; newer ones hide it on some.
    environment = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    environment.pop("MKL_CBWR", None)
    done = subprocess.run(
        [sys.executable, "-c", MKL_PROBE, argument],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


needs_mkl = pytest.mark.skipif(numerics.fingerprint()["mkl_mode"] == "absent", reason="this torch has no MKL")


@needs_mkl
def test_importing_the_package_puts_mkl_into_its_reproducible_mode():
    assert ask_mkl("as it is") == {"mode": "2", "differ": [], "said": ""}


@needs_mkl
def test_mutant_mkl_without_its_mode():
    told = ask_mkl("unset")
    assert told["differ"]
    assert told["mode"] == "1"
    assert "MKL runs in mode 1 instead of 2 (AUTO)" in told["said"]
    assert "set MKL_CBWR=AUTO in the environment" in told["said"]


def test_require_sets_one_thread_and_says_what_stands_in_the_way(monkeypatch):
    torch.set_num_threads(2)
    numerics.require()
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(numerics, "_mkl_mode", lambda: 3)
    with pytest.raises(NumericsError, match=r"MKL runs in mode 3 .* Import parallel_agents first"):
        numerics.require()
    monkeypatch.setattr(numerics, "_mkl_mode", lambda: None)
    numerics.require()
    assert numerics.fingerprint()["mkl_mode"] == "absent"


def test_the_fingerprint_tells_what_equality_depends_on():
    told = numerics.fingerprint()
    versions = {"parallel_agents", "torch", "numpy", "numba", "llvm", "libc"}
    instructions = {"machine", "cpu_capability", "numpy_cpu", "numba_cpu", "numba_features", "mkl_mode"}
    assert set(told) == versions | instructions | {"threads", "device"}
    assert told["threads"] == "1"
    assert told["device"] == "cpu"
    assert all(isinstance(value, str) for value in told.values())


def test_the_fingerprint_changes_with_the_instructions_that_numba_and_numpy_may_use():
    script = "import json; from parallel_agents.networks import numerics; print(json.dumps(numerics.fingerprint()))"

    def told(**settings: str) -> dict[str, str]:
        env = {**os.environ, **settings}
        ended = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True, timeout=100)
        return json.loads(ended.stdout)

    here = told()
    other = told(NUMBA_CPU_NAME="nehalem", NUMBA_CPU_FEATURES="+sse4.2")
    changed = {name for name in here if here[name] != other[name]}
    assert changed == {"numba_cpu", "numba_features"}


# -- clipping and Adam ----------------------------------------------------------------------------------------


def test_rows_are_clipped_by_their_own_norm():
    gradients = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [30.0, 40.0]])
    norms = numerics.clip_rows(gradients, torch.tensor([1.0, 1.0, 1.0, 100.0]))
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.5, 0.0, 50.0]))
    torch.testing.assert_close(gradients, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [30.0, 40.0]]))


def adam(row, gradients, rate):
    """Adam of one row in plain floats, from the paper."""
    row, first, second = list(row), [0.0] * len(row), [0.0] * len(row)
    for step, gradient in enumerate(gradients, 1):
        for k, g in enumerate(gradient):
            first[k] = 0.9 * first[k] + 0.1 * g
            second[k] = 0.999 * second[k] + 0.001 * g * g
            row[k] -= rate * (first[k] / (1 - 0.9**step)) / (math.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
    return row


def test_each_row_has_its_own_rate_and_step_count():
    rows, start = numbers(4, 32), numbers(4, 32)
    gradients, first, second, steps = torch.zeros(4, 32), torch.zeros(4, 32), torch.zeros(4, 32), torch.zeros(4)
    optimizer = numerics.RowAdam(rows, gradients, first, second, steps)
    rates = [1e-2, 1e-1, 1e-2, 1e-3]
    accepted = [[True, True, False, False], [True, False, False, True], [True, True, False, True]]
    taken = [[], [], [], []]
    for update, who in enumerate(accepted):
        gradients.copy_(numbers(4, 32, seed=update + 10))
        optimizer.step(rates, who)
        for n in range(4):
            if who[n]:
                taken[n].append(gradients[n].tolist())
    assert steps.tolist() == [3.0, 2.0, 0.0, 2.0]
    for n in range(4):
        expected = adam(start[n].tolist(), taken[n], rates[n])
        torch.testing.assert_close(rows[n], torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert torch.equal(rows[2], start[2])
    assert not first[2].any()
    assert not second[2].any()
