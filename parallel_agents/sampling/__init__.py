"""CHOOSE: importance sampling of rare and valuable events. It knows classes and positions, and keeps no rows.

weights      the mathematics: shares, corrections, effective sample size
classes      positions by class: O(1) add, evict and draw
sumtree      positions by priority; priorities: both together
rule         class counts -> batch shares; weighting: all options of a sampler, as one frozen value
spread       class weights learned from gradients or returns
worlds       weights of worlds from their factors
importance   the sampler: draws, corrections, statistics, state
events       experience -> event type, by label, words, behaviour, campaign or value
estimate     weighted means with their errors, for off-policy evaluation
"""

from parallel_agents.sampling.classes import ClassIndex, Draw, draw_by_class, uniform_positions
from parallel_agents.sampling.collapse import EffectiveSampleSizeWarning, flag_collapse
from parallel_agents.sampling.estimate import Estimate, weighted_estimate
from parallel_agents.sampling.events import CRISIS_INDICATORS, Decision, ExperienceAggregator
from parallel_agents.sampling.importance import ImportanceSampler
from parallel_agents.sampling.priorities import PriorityIndex
from parallel_agents.sampling.rule import CRISIS_PARENT, REGULAR_PARENT, ClassRule
from parallel_agents.sampling.sampled import Sampled
from parallel_agents.sampling.source import Source, sample_uniforms
from parallel_agents.sampling.spread import ClassSpread
from parallel_agents.sampling.sumtree import SumTree
from parallel_agents.sampling.weighting import Weighting
from parallel_agents.sampling.worlds import WORLD_FACTORS, WorldRule, fit_world_rule

__all__ = [
    "CRISIS_INDICATORS",
    "CRISIS_PARENT",
    "REGULAR_PARENT",
    "WORLD_FACTORS",
    "ClassIndex",
    "ClassRule",
    "ClassSpread",
    "Decision",
    "Draw",
    "EffectiveSampleSizeWarning",
    "Estimate",
    "ExperienceAggregator",
    "ImportanceSampler",
    "PriorityIndex",
    "Sampled",
    "Source",
    "SumTree",
    "Weighting",
    "WorldRule",
    "draw_by_class",
    "fit_world_rule",
    "flag_collapse",
    "sample_uniforms",
    "uniform_positions",
    "weighted_estimate",
]
