"""The norm tile: group norm with fused ReLU, not affine or affine (spec/tiles/norm.py).

Two engines, forward and backward, each go through a packet twice: row by row for sums, then pixel
by pixel for results. What once a group needs is done serially between.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.bus import tile_bus
from hw.delay import delayed
from hw.norm_backward import NormBackward
from hw.norm_forward import NormForward
from hw.norm_layouts import NormParameters
from hw.norm_parameters import NormParameterStore, store_bits
from hw.stash import connect_kept, kept_port, stash_reader
from hw.streams import packet_stream
from hw.tile_registers import StateRegister
from spec.bus import TILE_REGISTER_BITS
from spec.packets import BeatLayout
from spec.random_bits import Tensor


class NormCore(wiring.Component):
    """Normalises forward packets, and takes the gradient back through it.

    Not affine, both directions run independently of each other, as far as the rings of what is
    kept allow; affine, they take turns, and a forward packet waits for the update before it.
    Throughput: Norm.forward_cycles and backward_cycles clocks a packet. Golden counterpart:
    model/tiles/norm.py. Cores of equal `key` are the same module.

    Members
    -------
    stash: packets at the input. gradient: those that come back.
    kept: x^ (and the mask of an affine norm's ReLU). rstd: one word a group.
    o, o_gradient: results forwards and backwards.
    bus: the random state of gradients; affine, all that a tile with parameters has.
    """

    def __init__(self, parameters: NormParameters) -> None:
        self._p = p = parameters
        self.key = parameters
        formats = p.formats
        source = BeatLayout(formats.source, p.lanes, forward=True)
        target = BeatLayout(formats.target, p.lanes, forward=True)
        source_gradient = BeatLayout(formats.source_gradient, p.lanes, forward=False)
        gradient = BeatLayout(formats.target_gradient, p.lanes, forward=False)
        bits = store_bits(p.walks.words, p.lanes) if p.affine else TILE_REGISTER_BITS
        super().__init__(
            {
                "stash": Out(stash_reader(source, p.beats)),
                "gradient": Out(stash_reader(gradient, p.beats)),
                "kept": Out(kept_port(p.kept.size, p.beats)),
                "rstd": Out(kept_port(formats.rstd.width, p.groups)),
                "o": Out(packet_stream(target)),
                "o_gradient": Out(packet_stream(source_gradient)),
                "bus": In(tile_bus(bits)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.forward = forward = NormForward(self._p)
        m.submodules.backward = backward = NormBackward(self._p)
        wiring.connect(m, wiring.flipped(self.stash), forward.stash)
        wiring.connect(m, wiring.flipped(self.gradient), backward.gradient)
        wiring.connect(m, forward.o, wiring.flipped(self.o))
        wiring.connect(m, backward.o, wiring.flipped(self.o_gradient))
        connect_kept(m, self.kept, forward.kept, backward.kept)
        connect_kept(m, self.rstd, forward.rstd, backward.rstd)
        if self._p.affine:
            self._add_parameters(m, forward, backward)
        else:
            m.submodules.state = register = StateRegister(TILE_REGISTER_BITS)
            wiring.connect(m, wiring.flipped(self.bus), register.bus)
            m.d.comb += [
                backward.state.eq(register.state),
                register.updated.eq(backward.updated),
                forward.enable.eq(1),
                backward.enable.eq(1),
            ]
        return m

    def _add_parameters(self, m: Module, forward: NormForward, backward: NormBackward) -> None:
        """The store of an affine norm, which both directions use in turn, forward first."""
        p = self._p
        m.submodules.store = store = NormParameterStore(p.walks.words, p.lanes, p.formats)
        wiring.connect(m, wiring.flipped(self.bus), store.bus)
        turn = Signal()
        with m.If(forward.taken):
            m.d.sync += turn.eq(1)
        with m.If(backward.taken):
            m.d.sync += turn.eq(0)
        # The last words of a forward packet are still on their way when the turn goes over.
        late_turn = delayed(m, turn, 3, name="turn")
        m.d.comb += [
            forward.enable.eq(~turn),
            backward.enable.eq(turn),
            store.word.eq(Mux(late_turn, backward.word, forward.word)),
            store.evaluate.eq(late_turn | forward.evaluate),
            forward.gain.eq(store.gain),
            forward.offset.eq(store.offset),
            backward.gain.eq(store.gain),
            store.commit.eq(forward.commit),
            store.updated.eq(backward.updated),
            backward.state.eq(store.states[Tensor.GRADIENT]),
            store.gradient_valid.eq(backward.gradient_valid),
            store.gradient_word.eq(backward.gradient_word),
            store.gain_gradient.eq(backward.gain_gradient),
            store.offset_gradient.eq(backward.offset_gradient),
            store.update.eq(backward.update),
            backward.done.eq(store.done),
        ]
