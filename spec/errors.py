"""The one exception for input that a user can correct."""


class InputError(ValueError):
    """A value from the user that does not fit.

    The message is one line that names the value and what would be legal; the command line prints
    it alone and leaves with status 2.
    """
