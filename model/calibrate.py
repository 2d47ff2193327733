"""Calibration: where the binary point of every tensor of a network lies.

One seeded epoch (of large data sets its beginning) in float64 records the largest magnitude of each
tensor. Each exponent is the smallest whose power of two no value has passed; a format then
saturates only what later epochs and other seeds add.

Neither a percentile nor headroom did better. Test accuracy of digits_mlp after three epochs, LWP+SC
under `compact`, mean of 8 seeds (standard deviation about 1): float32 95.4; this rule 95.4;
activations a bit tighter 95.0, wider 95.2; input a bit wider 94.9; weights a bit wider 95.1.
Gradients a bit tighter 10.2: those of the logits no longer sum to zero, and every ReLU dies.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import ceil, log2
from pathlib import Path

import torch

from model.arithmetic import FloatArithmetic
from model.data import load_dataset
from model.engine import Engine, SlotRecord
from model.feed import Turn, training
from model.initial import initial_parameters
from model.tiles.norm import AffineNormTile, NormTile
from model.update import Moments
from spec.codec import content_hash
from spec.planner import Wishes, make_plan
from spec.ranges import EdgeRange, NormRange, ParameterRange, Ranges
from spec.tiles import Norm
from spec.zoo import ZooEntry

SAMPLES = 3000
"""Training samples at most, where an epoch is longer."""


def calibrate(entry: ZooEntry, folder: Path | None = None, seed: int = 0) -> Ranges:
    """The ranges of a network of the zoo, trained for an epoch (but at most SAMPLES samples) at its
    default settings; `folder` has its data set, where it needs one."""
    network = entry.network
    arithmetic = FloatArithmetic(torch.float64)
    plan = make_plan(entry, Wishes(seed=seed), Ranges.nominal(network))
    engine = Engine(plan, arithmetic, initial_parameters(plan, arithmetic))
    train = load_dataset(entry.dataset, folder).train
    images = arithmetic.encode(train.images, plan.hardware.edges[0].activation)
    magnitudes = Magnitudes(engine)
    magnitudes.watch(images, training(plan, train.labels, min(SAMPLES, len(train))))
    return magnitudes.ranges()


class Magnitudes:
    """The largest magnitude of every tensor of a float engine, by kind and name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._largest: defaultdict[tuple[str, str], float] = defaultdict(float)

    def watch(self, images: torch.Tensor, turns: Iterable[Turn]) -> None:
        """Run the engine over `turns` and record what passes."""
        trained = self._engine.trained
        for header, sample in turns:
            before = {name: tile.parameters.moments for name, tile in trained.items()}
            self._see_packets(self._engine.slot(header, None if sample is None else images[sample]))
            self._see_norms()
            for name, moments in before.items():
                self._see_update(name, moments)

    def ranges(self) -> Ranges:
        """The exponents of all that was seen."""
        network, size = self._engine.plan.network, self._exponent
        return Ranges(
            content_hash(network),
            tuple(
                EdgeRange(edge, size("activation", str(edge)), size("gradient", str(edge)))
                for edge in network.edges
            ),
            tuple(
                NormRange(tile.name, size("x^", tile.name), size("rstd", tile.name))
                for tile in network.tiles
                if isinstance(tile, Norm)
            ),
            tuple(
                ParameterRange(
                    name,
                    weight=size("weight", name),
                    gradient=size("weight gradient", name),
                    velocity=size("velocity", name),
                )
                for name in self._engine.trained
            ),
        )

    def _see_packets(self, record: SlotRecord) -> None:
        for seen in record.packets:
            if seen.packet.data is not None:
                kind = "activation" if seen.forward else "gradient"
                self._see(kind, str(seen.edge), seen.packet.data)

    def _see_norms(self) -> None:
        """x^ and rstd are the first that a norm keeps of a training sample."""
        for name, tile in self._engine.tiles.items():
            if isinstance(tile, NormTile | AffineNormTile) and tile.stash[-1].kept:
                normalised, rstd, *_ = tile.stash[-1].kept
                self._see("x^", name, normalised)
                self._see("rstd", name, rstd)

    def _see_update(self, tile: str, before: Moments) -> None:
        """The gradient is what the velocity gained: g = v' - m v; the hardware keeps (1-m) v'."""
        after = self._engine.trained[tile].parameters.moments
        momentum = self._engine.plan.run.hyperparameters.momentum
        self._see("weight", tile, after.master)
        self._see("velocity", tile, (1 - momentum) * after.velocity)
        self._see("weight gradient", tile, after.velocity - momentum * before.velocity)

    def _see(self, kind: str, name: str, tensor: torch.Tensor | None) -> None:
        if tensor is None:
            return
        largest = float(tensor.abs().max())
        self._largest[kind, name] = max(self._largest[kind, name], largest)

    def _exponent(self, kind: str, name: str) -> int:
        largest = self._largest[kind, name]
        return ceil(log2(largest)) if largest else 0
