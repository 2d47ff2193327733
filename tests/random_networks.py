"""Hypothesis strategies for small legal networks with every kind of tile, and for plans of them."""

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.method import PAPER_METHODS
from spec.network import Network, NetworkBuilder
from spec.plan import HardwarePlan, Plan, RunPlan
from spec.planner import plan_hardware
from spec.presets import Preset
from spec.ranges import EdgeRange, Ranges
from spec.schedule import Schedule
from spec.shape import Shape, divisors
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, MaxPool, Norm, Shortcut, dense
from spec.tiles.conv import legal_update_lanes

LARGEST_SIDE = 6
CHANNELS = (1, 2, 3, 4, 6, 8)
LARGEST_BLOCKS = 3
MULTIPLIERS = 16
LONGEST_SLOT = 2_500


class _Sketch:
    """A network being drawn; keeps the shape behind the last tile and numbers the tiles."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        side = st.integers(2, LARGEST_SIDE)
        self.shape = Shape(draw(side), draw(side), draw(st.sampled_from(CHANNELS[:4])))
        self.builder = NetworkBuilder("random", self.shape)
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def conv(self, stride: int | None = None, outputs: int | None = None, *sources: str) -> str:
        """A convolution; one with a given stride keeps the pixels that the stride meets."""
        draw, fixed = self.draw, stride is not None
        kernel = draw(st.sampled_from([1, 3]))
        if fixed:
            padding = kernel // 2
        else:
            stride = draw(st.sampled_from([1, 1, 2]))
            smallest = min(self.shape.rows, self.shape.columns)
            padding = draw(
                st.sampled_from([p for p in range(kernel) if smallest + 2 * p >= kernel])
            )
        tile = Conv(
            self.name("conv"),
            outputs or draw(st.sampled_from(CHANNELS[1:])),
            kernel,
            stride or 1,
            padding,
            bias=draw(st.booleans()),
            relu=draw(st.booleans()),
        )
        return self.add(tile, *sources)

    def add(
        self, tile: Conv | Norm | MaxPool | AveragePool | Fork | Shortcut, *sources: str
    ) -> str:
        if not isinstance(tile, Fork) and self.draw(st.booleans() | st.just(True)):
            self.builder.stage()
        self.shape = tile.output_shape(self.shape)
        return self.builder.add(tile, *sources)

    def norm(self) -> str:
        draw = self.draw
        group = draw(st.sampled_from(divisors(self.shape.channels)))
        tile = Norm(self.name("norm"), group, affine=draw(st.booleans()), relu=draw(st.booleans()))
        return self.add(tile)

    def residual(self) -> str:
        """A block of one or two convolutions beside an identity, option A or a projection."""
        draw, before = self.draw, self.shape
        stride = draw(st.sampled_from([1, 2]))
        fork = self.add(Fork(self.name("fork")))
        if draw(st.booleans()):
            self.norm()
        wider = [n for n in CHANNELS if n >= before.channels]
        outputs = draw(st.sampled_from([before.channels, *wider]))
        branch = self.conv(stride, outputs)
        if draw(st.booleans()):
            branch = self.conv(1, outputs)
        after = self.shape
        side = fork
        self.shape = before
        if draw(st.booleans()):
            side = self.conv(stride, outputs, fork)
        elif before != after:
            side = self.add(Shortcut(self.name("shortcut"), outputs, stride), fork)
        assert self.shape == after or side == fork
        self.shape = after
        return self.builder.add(Add(self.name("add")), branch, side)

    def block(self) -> None:
        kinds = ["conv", "norm", "residual"]
        if min(self.shape.rows, self.shape.columns) >= 2:
            kinds.append("pool")
        kind = self.draw(st.sampled_from(kinds))
        if kind == "pool":
            self.add(MaxPool(self.name("pool")))
        else:
            getattr(self, kind)()


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Any tile behind any other, with branches; at the end an average and a dense tile."""
    sketch = _Sketch(draw)
    sketch.conv()
    for _ in range(draw(st.integers(0, LARGEST_BLOCKS))):
        sketch.block()
    if sketch.shape.pixels > 1:
        sketch.add(AveragePool(sketch.name("average")))
    sketch.add(dense(sketch.name("dense"), draw(st.integers(2, 4)), relu=False))
    sketch.builder.add(Loss("loss"))
    return sketch.builder.network()


@st.composite
def foldings(draw: st.DrawFn, network: Network) -> tuple[Folding, ...]:
    """Any lanes that divide the channels, up to MULTIPLIERS a tile."""
    drawn = []
    for tile in network.convs:
        lanes_in = draw(st.sampled_from(divisors(network.input_shape_of(tile).channels)))
        legal = [n for n in divisors(tile.outputs) if n * lanes_in <= MULTIPLIERS]
        lanes_out = draw(st.sampled_from(legal))
        update = draw(st.sampled_from(legal_update_lanes(lanes_in, lanes_out)))
        drawn.append(Folding(lanes_in, lanes_out, update))
    return tuple(drawn)


@st.composite
def ranges(draw: st.DrawFn, network: Network) -> Ranges:
    """Binary points around the plausible ones: some tensors saturate and some are coarse."""
    nominal = Ranges.nominal(network)
    shift = st.integers(-2, 2)
    edges = tuple(
        EdgeRange(found.edge, found.activation + draw(shift), found.gradient + draw(shift))
        for found in nominal.edges
    )
    return replace(nominal, edges=edges)


@st.composite
def hardware_plans(draw: st.DrawFn, schedules: st.SearchStrategy[Schedule]) -> HardwarePlan:
    """Slots are short enough that a few dozen of them simulate in seconds."""
    network = draw(networks())
    widths = draw(st.sampled_from(Preset)).widths
    lanes = draw(foldings(network))
    hardware = plan_hardware(network, draw(ranges(network)), widths, lanes, draw(schedules))
    slots = [hardware.geometry(planned).slot_cycles for planned in hardware.convs]
    assume(max(slots) <= LONGEST_SLOT)
    return hardware


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Hardware and a run on noise with steps large enough to move every weight."""
    schedule, method = draw(st.sampled_from(Schedule)), draw(st.sampled_from(PAPER_METHODS))
    hardware = draw(hardware_plans(st.just(schedule)))
    eta, momentum = 2.0 ** -draw(st.integers(2, 5)), 1 - 2.0 ** -draw(st.integers(1, 4))
    hyperparameters = Hyperparameters(eta, momentum, draw(st.sampled_from([0.0, 2.0**-6])))
    run = RunPlan(method, schedule, hyperparameters, draw(st.integers(0, 3)), "noise")
    return Plan(hardware, run)
