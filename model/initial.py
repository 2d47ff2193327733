"""Initial parameters by seed."""

from math import prod

import numpy as np

from model.arithmetic import Arithmetic
from model.tiles.dense import Parameters, working_copy
from model.update import Moments
from spec.plan import Plan

INITIAL_STREAM = 0x57
"""Keeps the random numbers of the weights apart from those of the sample order."""


def initial_parameters(plan: Plan, arithmetic: Arithmetic) -> dict[str, Parameters]:
    """He-uniform weights (bound sqrt(6 / fan_in)), biases and velocities zero, by tile name.

    All number systems round the same real numbers; the working copy is the rounded master.
    """
    generator = np.random.Generator(np.random.PCG64([plan.run.seed, INITIAL_STREAM]))
    result = {}
    for planned in plan.hardware.dense:
        tile, source = planned.tile, plan.hardware.source_of(planned.tile.name).shape
        bound = np.sqrt(6 / tile.fan_in(source))
        shape = tile.weight_shape(source)
        weights = generator.uniform(-bound, bound, prod(shape))
        flat = np.concatenate((weights, np.zeros(tile.outputs if tile.bias else 0)))
        master = arithmetic.encode(flat, planned.parameters.master)
        velocity = arithmetic.encode(np.zeros_like(flat), planned.parameters.velocity)
        formats = plan.hardware.formats(planned)
        working = working_copy(master, formats, shape, arithmetic)
        result[tile.name] = Parameters(Moments(master, velocity), working)
    return result
