"""The mathematics of value learning against numbers worked by hand."""

import torch

from parallel_agents.learning.losses import double_q_targets, huber, q_targets, values_of, weighted_mean

RETURNS = torch.tensor([[1.0, -2.0, 0.5]])
DISCOUNTS = torch.tensor([[0.9, 0.0, 0.81]])
NEXT = torch.tensor([[[1.0, 3.0], [5.0, 4.0], [-1.0, -2.0]]])
ONLINE = torch.tensor([[[7.0, 6.0], [0.0, 1.0], [2.0, 3.0]]])


def test_targets_take_the_best_value():
    # 1 + 0.9·3;  -2, the episode ended;  0.5 + 0.81·(-1)
    torch.testing.assert_close(q_targets(RETURNS, DISCOUNTS, NEXT), torch.tensor([[3.7, -2.0, -0.31]]))


def test_double_targets_take_the_value_of_the_action_that_the_online_network_prefers():
    # 1 + 0.9·1;  -2;  0.5 + 0.81·(-2)
    torch.testing.assert_close(double_q_targets(RETURNS, DISCOUNTS, NEXT, ONLINE), torch.tensor([[1.9, -2.0, -1.12]]))


def test_huber_is_quadratic_inside_and_linear_outside():
    errors = torch.tensor([0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0], requires_grad=True)
    assert huber(errors).tolist() == [0.0, 0.125, 0.125, 0.5, 0.5, 2.5, 2.5]
    (slope,) = torch.autograd.grad(huber(errors).sum(), errors)
    assert slope.tolist() == [0.0, 0.5, -0.5, 1.0, -1.0, 1.0, -1.0]


def test_samples_are_weighted_before_the_mean():
    losses = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert weighted_mean(losses, None).tolist() == [2.0, 2.0]
    assert weighted_mean(losses, torch.tensor([[1.0, 0.0], [0.5, 1.0]])).tolist() == [0.5, 1.5]


def test_values_of_taken_actions():
    assert values_of(NEXT, torch.tensor([[1, 0, 1]])).tolist() == [[3.0, 5.0, -2.0]]
