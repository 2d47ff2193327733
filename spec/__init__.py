"""What is built: networks, formats, coefficients, schedules and the plan that joins them.

Needs nothing but the standard library and numpy, so that hardware, golden model and firmware can
all read the same numbers from here.
"""
