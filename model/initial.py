"""Initial parameters by seed."""

import numpy as np

from model.arithmetic import Arithmetic
from model.tiles.base import Parameters, Rounding
from model.update import Moments
from spec.plan import Plan
from spec.tiles import Conv

INITIAL_STREAM = 0x57
"""Keeps the random numbers of the weights apart from those of the sample order."""


def initial_parameters(plan: Plan, arithmetic: Arithmetic) -> dict[str, Parameters]:
    """He-uniform weights (bound gain sqrt(6 / fan_in)), gains one, biases and velocities zero, by
    tile name.

    All number systems round the same real numbers; the working copy is the rounded master.
    """
    generator = np.random.Generator(np.random.PCG64([plan.run.seed, INITIAL_STREAM]))
    result = {}
    for planned in plan.hardware.parameterised:
        tile, formats = planned.tile, planned.parameters
        assert formats is not None
        count, biases = plan.network.parameter_counts(tile)
        if isinstance(tile, Conv):
            source = plan.network.input_shape_of(tile)
            bound = tile.gain * np.sqrt(6 / tile.fan_in(source))
            weights = generator.uniform(-bound, bound, count)
        else:
            weights = np.ones(count)
        flat = np.concatenate((weights, np.zeros(biases)))
        master = arithmetic.encode(flat, formats.master)
        velocity = arithmetic.encode(np.zeros_like(flat), formats.velocity)
        working = Rounding.of(plan, planned).copy(master, arithmetic)
        result[tile.name] = Parameters(Moments(master, velocity), working)
    return result
