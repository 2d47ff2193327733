"""How every command line of the project ends: in order, or with one line on stderr."""

import sys
from typing import NoReturn

import click

from spec.errors import InputError

BAD_INPUT = 2
INTERRUPTED = 130


def run(command: click.Command) -> NoReturn:
    """Run a click command on the process's arguments and leave.

    Input that a user can correct ends with one line on stderr and status 2.
    """
    try:
        status = command.main(standalone_mode=False)
    except click.ClickException as error:
        _leave(error.format_message(), BAD_INPUT)
    except InputError as error:
        _leave(str(error), BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        _leave("interrupted", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _leave(message: str, status: int) -> NoReturn:
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(status)
