"""The entry of the command line: errors as text, exit codes.

Comes in: the words of the command line. Goes out: an exit code.
"""

import os
import sys
from collections.abc import Sequence

import jax

from flowjax.cli.arguments import make_parser
from flowjax.cli.auditing import run_audit
from flowjax.cli.planning import run_plan
from sbp.errors import SbpError

WRONG = 2
INTERRUPTED = 130  # as shells say of a program that SIGINT ended


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
    except (SbpError, OSError) as error:
        sys.stderr.write(f"flowjax: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write("flowjax: interrupted before there was a plan\n")
        return INTERRUPTED
    return code
