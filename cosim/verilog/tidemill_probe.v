// Stands in every stream of an array built for simulation: holds it at random, and keeps a CRC-32
// of every packet and all beats of one packet that is asked for.
//
// control = {capture[31:0], seed[31:0], stall[6:0]}: percent of clocks to hold the stream, the seed
// of that (read during reset), and the number of the packet whose beats (at most CAPTURE) go to
// `captured`.
// A beat that has been offered stays until it is taken.
module tidemill_probe #(
    parameter WIDTH = 8,
    parameter INDEX = 0,
    parameter CAPTURE = 1
) (
    input clk,
    input rst,
    input [70:0] control,
    input i_valid,
    input [WIDTH-1:0] i_payload,
    input i_last,
    output i_ready,
    output o_valid,
    output [WIDTH-1:0] o_payload,
    input o_ready
);
    localparam LOG = 1024;
    localparam PADDED = (WIDTH + 7) / 8 * 8;
    wire [PADDED-1:0] padded = i_payload;

    wire [6:0] stall = control[6:0];
    wire [31:0] seed = control[38:7];
    wire [31:0] capture = control[70:39];

    reg open;
    reg [31:0] random;
    wire [22:0] scaled = random[31:16] * 7'd100;
    assign o_valid = i_valid & open;
    assign i_ready = o_ready & open;
    assign o_payload = i_payload;

    always @(posedge clk) begin
        if (rst) begin
            open <= 1'b0;
            random <= (seed ^ (32'h9e3779b9 * (INDEX + 1))) | 32'd1;
        end else begin
            random <= step(random);
            if (!(o_valid && !o_ready))
                open <= scaled[22:16] >= stall;
        end
    end

    reg [31:0] crc_log [0:LOG-1];
    reg [WIDTH-1:0] captured [0:CAPTURE-1];
    reg [31:0] packets;
    reg [31:0] beats;
    reg [31:0] crc;
    reg shown_valid, shown_ready;

    always @(posedge clk) begin
        shown_valid <= i_valid;
        shown_ready <= o_ready;
        if (rst) begin
            packets <= 32'd0;
            beats <= 32'd0;
            crc <= 32'hffffffff;
        end else if (i_valid && i_ready) begin
            if (packets == capture && beats < CAPTURE)
                captured[beats] <= i_payload;
            if (i_last) begin
                crc_log[packets[9:0]] <= ~next_crc(crc, padded);
                crc <= 32'hffffffff;
                packets <= packets + 32'd1;
                beats <= 32'd0;
            end else begin
                crc <= next_crc(crc, padded);
                beats <= beats + 32'd1;
            end
        end
    end

    function [31:0] step(input [31:0] x);
        reg [31:0] a, b;
        begin
            a = x ^ (x << 13);
            b = a ^ (a >> 17);
            step = b ^ (b << 5);
        end
    endfunction

    function [31:0] next_crc(input [31:0] start, input [PADDED-1:0] data);
        integer i;
        reg [31:0] c;
        begin
            c = start;
            for (i = 0; i < PADDED; i = i + 1)
                c = (c[0] ^ data[i]) ? ((c >> 1) ^ 32'hedb88320) : (c >> 1);
            next_crc = c;
        end
    endfunction
endmodule
