"""The command line: `flowjax plan` and `flowjax audit`, on a machine without accelerators.

Read on in this order: `arguments` (what can be said), `targets` (import path to function and
arguments), `planning` and `auditing` (the commands), `progress` (what is shown meanwhile),
`users_errors` and `wording` (whose error it is, and its words), `entry` (exit codes).
"""

from flowjax.cli.entry import main as main
