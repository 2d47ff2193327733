"""How fast an array runs: the max-plus recursion over its slots (design, section 3)."""

from spec.plan import HardwarePlan


def slot_period(hardware: HardwarePlan) -> float:
    """Cycles from one training sample to the next in steady state."""
    return max(hardware.geometry(planned).slot_cycles for planned in hardware.convs)
