"""The core of each tile of a plan, with the memories that it keeps beside it."""

from typing import Any

from amaranth import Module
from amaranth.lib import wiring

from hw.mac import MacParameters
from hw.norm_layouts import NormParameters
from hw.shared import shared
from hw.stash import KeptStash
from hw.tiles.branch import AddCore, ForkCore, ShortcutCore
from hw.tiles.conv import ConvCore
from hw.tiles.loss import LossCore
from hw.tiles.norm import NormCore
from hw.tiles.pool import AveragePoolCore, MaxPoolCore
from spec.errors import InputError
from spec.plan import HardwarePlan
from spec.schedule import stash_depth
from spec.tile_plans import ConvPlan, LanePlan, NormPlan, TilePlan
from spec.tiles import Add, AveragePool, Conv, Fork, MaxPool, Norm, Shortcut

Core = (
    ConvCore
    | NormCore
    | MaxPoolCore
    | AveragePoolCore
    | ForkCore
    | AddCore
    | ShortcutCore
    | LossCore
)


def make_core(hardware: HardwarePlan, planned: TilePlan) -> Core:
    """The core of a tile; equal `key`s mean equal hardware.

    Raises InputError for what has no hardware.
    """
    name = planned.tile.name
    source = hardware.source_of(name)
    if isinstance(planned, ConvPlan):
        if planned.tile.standardised:
            raise InputError(f"{name}: weight standardisation has no hardware, only a golden model")
        parameters = MacParameters(
            hardware.geometry(planned), hardware.formats(planned), hardware.sum_widths(planned)
        )
        return ConvCore(parameters, source.target_beats, hardware.target_of(name).beats)
    if isinstance(planned, NormPlan):
        return NormCore(
            NormParameters(
                source.shape, planned.tile.group, planned.lanes, hardware.norm_formats(planned)
            )
        )
    return _plain_core(hardware, planned)


def _plain_core(hardware: HardwarePlan, planned: LanePlan) -> Core:
    tile, lanes = planned.tile, planned.lanes
    source = hardware.source_of(tile.name)
    if isinstance(tile, MaxPool):
        return MaxPoolCore(source.shape, lanes, source.activation, source.gradient)
    if isinstance(tile, AveragePool):
        target = hardware.target_of(tile.name)
        return AveragePoolCore(
            source.shape,
            lanes,
            source.activation,
            target.activation,
            source.gradient,
            target.gradient,
            source.stochastic,
        )
    if isinstance(tile, Fork):
        outputs = len(hardware.targets_of(tile.name))
        return ForkCore(source.arriving, source.backward, outputs)
    if isinstance(tile, Add):
        return AddCore(source.arriving, source.backward)
    if isinstance(tile, Shortcut):
        return ShortcutCore(source.shape, tile, lanes, source.activation, source.gradient)
    return LossCore(source.shape.channels, lanes, source.gradient, source.stochastic)


def add_core(m: Module, hardware: HardwarePlan, planned: TilePlan, platform: object) -> Core:
    """Make a core part of the array, and connect the rings of what it keeps for backward passes."""
    core, name = make_core(hardware, planned), planned.tile.name
    m.submodules[name] = shared(core, core.key, platform)
    delay = hardware.delay(name)
    for port, words in kept_words(hardware, planned).items():
        kept: Any = getattr(core, port)
        ring_of = (len(kept.word), words, stash_depth(delay), delay)
        ring = KeptStash(*ring_of)
        m.submodules[f"{name}_{port}"] = shared(ring, ring_of, platform)
        wiring.connect(m, kept, ring.port)
    return core


def kept_words(hardware: HardwarePlan, planned: TilePlan) -> dict[str, int]:
    """Words of a packet in each ring of a tile, by the name of the core's port."""
    source, tile = hardware.source_of(planned.tile.name), planned.tile
    if isinstance(tile, Conv):
        return {"mask": hardware.target_of(tile.name).beats} if tile.relu else {}
    if isinstance(tile, Norm):
        return {"kept": source.target_beats, "rstd": source.shape.channels // tile.group}
    return {"kept": hardware.target_of(tile.name).beats} if isinstance(tile, MaxPool) else {}
