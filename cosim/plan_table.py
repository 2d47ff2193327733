"""A plan as a table: tiles, lanes, delays, memories and cycles."""

from rich.table import Table

from spec.plan import Plan
from spec.throughput import slot_period, timing, utilisation
from spec.tile_plans import ConvPlan, NormPlan, TilePlan

MEMORIES = ("stash", "channel", "parameters")


def plan_table(plan: Plan) -> Table:
    """One row a tile, and the totals."""
    hardware, busy = plan.hardware, utilisation(plan.hardware)
    title = (
        f"{plan.network.name}: {plan.network.depth} stages, {plan.network.parameters:,} parameters"
    )
    table = Table(title=title)
    for column in ("tile", "output", "lanes", "delay", "forward", "backward", "slot", "use"):
        table.add_column(column, justify="left" if column == "tile" else "right")
    for memory in MEMORIES:
        table.add_column(f"{memory} kbit", justify="right")
    totals = [0] * len(MEMORIES)
    for planned in hardware.tiles:
        bits = memory_bits(plan, planned)
        totals = [total + bits[memory] for total, memory in zip(totals, MEMORIES, strict=True)]
        table.add_row(*_cells(plan, planned, busy), *(_kbit(bits[m]) for m in MEMORIES))
    table.add_section()
    period = f"{slot_period(hardware):,.0f}"
    table.add_row("period", "", "", "", "", "", period, "", *map(_kbit, totals))
    return table


def memory_bits(plan: Plan, planned: TilePlan) -> dict[str, int]:
    """Bits of a tile's memories: packets in flight, gradients on their way back, and master
    weights, velocities and working copies."""
    hardware, name = plan.hardware, planned.tile.name
    parameters = 0
    if isinstance(planned, ConvPlan | NormPlan) and planned.parameters is not None:
        formats = planned.parameters
        weights, biases = plan.network.parameter_counts(planned.tile)
        each = formats.master.width + formats.velocity.width
        bias = (
            hardware.formats(planned).bias
            if isinstance(planned, ConvPlan)
            else hardware.norm_formats(planned).offset
        )
        parameters = weights * (each + formats.working.width) + biases * (each + bias.width)
    return {
        "stash": hardware.stash_bits_of(name),
        "channel": hardware.channel_bits_of(name),
        "parameters": parameters,
    }


def _cells(plan: Plan, planned: TilePlan, busy: dict[str, float]) -> list[str]:
    hardware, name = plan.hardware, planned.tile.name
    cycles = timing(hardware, planned)
    lanes = str(planned.lanes_in)
    slot = cycles.forward + cycles.backward + cycles.rest
    if isinstance(planned, ConvPlan):
        folding = planned.folding
        lanes = f"{folding.lanes_in}x{folding.lanes_out}/{folding.update_lanes}"
    return [
        name,
        str(plan.network.output_shapes[name]),
        lanes,
        str(hardware.delay(name)),
        f"{cycles.forward:,}",
        f"{cycles.backward:,}",
        f"{slot:,}",
        f"{100 * busy[name]:.1f} %" if name in busy else "",
    ]


def _kbit(bits: int) -> str:
    digits = 1 if bits < 1 << 20 else 0
    return f"{bits / 1024:,.{digits}f}" if bits else ""
