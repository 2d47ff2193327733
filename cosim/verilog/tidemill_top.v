// The bench with a clock of its own, so that the simulator need not call anybody in between.
// Rising edges lie at 5 ns past every 10.
module tidemill_top;
    reg clk = 1'b0;
    reg rst = 1'b1;
    always #5 clk = ~clk;
    initial #100 rst = 1'b0;

    tidemill_bench bench (.clk(clk), .rst(rst));
endmodule
