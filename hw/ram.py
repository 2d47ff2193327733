"""Block memories: an Amaranth memory in simulation, one parameterised module in Verilog.

Amaranth writes a line for every word of a memory, zeros too; for stashes of megabits that is most
of the file. Contents are undefined until written.
"""

from amaranth import ClockSignal, Instance, Module, Signal
from amaranth.hdl import ShapeCastable, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.shared import ModuleLibrary

MODULE = "tidemill_ram"
VERILOG = f"""
module {MODULE} #(
    parameter WIDTH = 1,
    parameter DEPTH = 1,
    parameter ADDRESS = 1,
    parameter LANES = 1
) (
    input clk,
    input [ADDRESS-1:0] write_address,
    input [WIDTH-1:0] write_data,
    input [LANES-1:0] write_enable,
    input [ADDRESS-1:0] read_address,
    input read_enable,
    output reg [WIDTH-1:0] read_data
);
    localparam PART = WIDTH / LANES;
    reg [WIDTH-1:0] memory [0:DEPTH-1];
    always @(posedge clk)
        if (read_enable)
            read_data <= memory[read_address];
    genvar lane;
    generate
        for (lane = 0; lane < LANES; lane = lane + 1) begin : write
            always @(posedge clk)
                if (write_enable[lane])
                    memory[write_address][lane*PART +: PART] <= write_data[lane*PART +: PART];
        end
    endgenerate
endmodule
"""


class Ram(wiring.Component):
    """One write port and one read port; a read sees the writes of earlier clocks.

    Latency: `data` one clock after `address`, held while `read` is low. Throughput: one word read
    and one written a clock.

    Parameters
    ----------
    shape: of a word.
    depth: words.
    lanes: parts of a word that are written separately.

    Members
    -------
    write_address, write_data, write: the write, one bit of `write` a lane.
    address, read, data: the read.
    """

    def __init__(self, shape: ShapeCastable, depth: int, lanes: int = 1) -> None:
        self._shape, self._depth, self._lanes = shape, depth, lanes
        super().__init__(
            {
                "write_address": In(range(depth)),
                "write_data": In(shape),
                "write": In(lanes),
                "address": In(range(depth)),
                "read": In(1),
                "data": Out(shape),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write_data, read_data = Value.cast(self.write_data), Value.cast(self.data)
        if isinstance(platform, ModuleLibrary):
            platform.sources[MODULE] = VERILOG
            bits = max(1, len(self.address))
            addresses = [Signal(bits, name=name) for name in ("to", "of")]
            m.d.comb += [
                addresses[0].eq(self.write_address),
                addresses[1].eq(self.address),
            ]
            m.submodules.ram = Instance(
                MODULE,
                p_WIDTH=len(write_data),
                p_DEPTH=self._depth,
                p_ADDRESS=bits,
                p_LANES=self._lanes,
                i_clk=ClockSignal(),
                i_write_address=addresses[0],
                i_write_data=write_data,
                i_write_enable=self.write,
                i_read_address=addresses[1],
                i_read_enable=self.read,
                o_read_data=read_data,
            )
            return m
        part = data.ArrayLayout(len(write_data) // self._lanes, self._lanes)
        m.submodules.memory = memory = Memory(shape=part, depth=self._depth, init=[])
        writer, reader = memory.write_port(granularity=1), memory.read_port()
        m.d.comb += [
            writer.addr.eq(self.write_address),
            writer.data.eq(write_data),
            writer.en.eq(self.write),
            reader.addr.eq(self.address),
            reader.en.eq(self.read),
            read_data.eq(reader.data),
        ]
        return m
