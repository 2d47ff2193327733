"""What the host writes before a run and expects after it, as addresses and words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from model.engine import Engine
from model.tiles.base import RandomTile
from spec.bus import COEFFICIENTS, LossRegister, Region
from spec.packets import Kind
from spec.random_bits import Tensor
from spec.registers import AddressMap, tensors_of
from spec.tile_plans import ConvPlan, NormPlan, ParameterPlan, TilePlan
from spec.update import UpdateCoefficients

WORD_MASK = 0xFFFF_FFFF


@dataclass(frozen=True)
class Access:
    """One word of the array and what it stands for; negative numbers in two's complement."""

    address: int
    value: int
    tile: str
    tensor: str
    element: int

    @property
    def word(self) -> int:
        return self.value & WORD_MASK


def state_accesses(engine: Engine) -> list[Access]:
    """Everything that a tile remembers: master weights, velocities, working copies, states.

    The same list serves to load the array before a run and to check it afterwards.
    """
    hardware = engine.plan.hardware
    addresses = AddressMap(hardware)
    accesses: list[Access] = []
    for planned in hardware.tiles:
        if isinstance(planned, ConvPlan | NormPlan) and planned.parameters is not None:
            accesses += _memory_accesses(engine, addresses, planned)
        accesses += _state_accesses(engine, addresses, planned)
    loss = engine.plan.network.tiles[-1].name
    state = engine.loss.random.states[Tensor.GRADIENT]
    address = addresses.loss(LossRegister.STATE)
    return [*accesses, Access(address, state, loss, "random state", Tensor.GRADIENT)]


def coefficient_accesses(engine: Engine) -> list[Access]:
    """The shadow coefficients of every tile."""
    addresses = AddressMap(engine.plan.hardware)
    accesses = []
    for planned in engine.plan.hardware.parameterised:
        name = planned.tile.name
        shadow = _integers(engine.trained[name].shadow)
        for coefficient in COEFFICIENTS:
            address, value = addresses.coefficient(name, coefficient), getattr(shadow, coefficient)
            accesses.append(Access(address, int(value), name, f"coefficient {coefficient}", 0))
    return accesses


def counter_accesses(engine: Engine) -> list[Access]:
    """The loss tile's counters as they should stand now."""
    addresses = AddressMap(engine.plan.hardware)
    loss = engine.plan.network.tiles[-1].name
    accesses = []
    for base, kind in (
        (LossRegister.TRAIN_SEEN, Kind.TRAIN),
        (LossRegister.EVAL_SEEN, Kind.EVAL),
    ):
        counters = engine.loss.counters[kind]
        total = int(counters.loss)
        words = (counters.seen, counters.correct, total & WORD_MASK, total >> 32)
        for offset, word in enumerate(words):
            register = LossRegister(base + offset)
            address = addresses.loss(register)
            accesses.append(Access(address, word, loss, register.name.lower(), 0))
    return accesses


def _integers(coefficients: object) -> UpdateCoefficients:
    if not isinstance(coefficients, UpdateCoefficients):
        raise TypeError(f"coefficients must be integers, not {coefficients!r}")
    return coefficients


def _memory_accesses(
    engine: Engine, addresses: AddressMap, planned: ParameterPlan
) -> Iterator[Access]:
    name = planned.tile.name
    parameters = engine.trained[name].parameters
    count, _ = engine.plan.network.parameter_counts(planned.tile)
    master, velocity = ((flat[:count], flat[count:]) for flat in parameters.moments)
    working = (parameters.working.weights, parameters.working.biases)
    for tensor, (weights, biases), region, bias_region in (
        ("master weight", master, Region.MASTER, Region.BIAS_MASTER),
        ("velocity", velocity, Region.VELOCITY, Region.BIAS_VELOCITY),
        ("working copy", working, Region.WORKING, Region.BIAS_WORKING),
    ):
        places = addresses.weights(planned, region).tolist()
        yield from _accesses(places, weights, name, tensor)
        if biases is not None and len(biases):
            places = addresses.biases(planned, bias_region).tolist()
            yield from _accesses(places, biases, name, f"bias {tensor}")


def _accesses(
    places: Sequence[int], numbers: torch.Tensor, name: str, tensor: str
) -> Iterator[Access]:
    pairs = zip(places, numbers.flatten().tolist(), strict=True)
    for element, (address, number) in enumerate(pairs):
        yield Access(address, number, name, tensor, element)


def _state_accesses(engine: Engine, addresses: AddressMap, planned: TilePlan) -> Iterator[Access]:
    name = planned.tile.name
    for tensor in tensors_of(planned):
        tile = engine.tiles[name]
        assert isinstance(tile, RandomTile)
        state = tile.random.states[tensor]
        yield Access(addresses.state(name, tensor), state, name, "random state", tensor)
