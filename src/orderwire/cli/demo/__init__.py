"""`orderwire demo`: an audited conference over real sockets, end to end.

The command starts a broker, the members and a Spark analyst, each a process of its own, leads them
through the conference and prints what the audit found.
"""

from orderwire.cli.demo.command import command

__all__ = ["command"]
