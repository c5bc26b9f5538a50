"""The entry of the command line: errors as text, exit codes.

Comes in: the words of the command line. Goes out: an exit code.
"""

import os
import sys
import traceback
from collections.abc import Sequence

import jax

from flowjax.cli.arguments import make_parser
from flowjax.cli.auditing import run_audit
from flowjax.cli.planning import run_plan
from flowjax.cli.users_errors import UsersError
from flowjax.cli.wording import as_typed
from sbp.errors import SbpError

WRONG = 2
INTERRUPTED = 130  # as shells say of a program that SIGINT ended
CRASHED = 70  # as sysexits.h says of an error of the program itself


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words after the program's name; those of the process if None.

    Returns:
        The exit code.
    """
    options = make_parser(run_plan, run_audit).parse_args(arguments)
    # Planning and auditing compute nothing: leave accelerators to those who do.
    jax.config.update("jax_platforms", "cpu")
    try:
        code = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`); what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SbpError as error:
        shown = error if isinstance(error, UsersError) else as_typed(error)
        sys.stderr.write(f"flowjax: {shown}\n")
        return WRONG
    except OSError as error:
        sys.stderr.write(f"flowjax: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write("flowjax: interrupted before there was a plan\n")
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        sys.stderr.write("flowjax: this is a fault of flowjax itself; please report it\n")
        return CRASHED
    return code
