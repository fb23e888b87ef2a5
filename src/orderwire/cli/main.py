"""The command `orderwire`: a table of commands, each loaded when it is called."""

import importlib
from collections.abc import Mapping

import click

COMMANDS: Mapping[str, str] = {
    "audit": "Check that a trace kept every ordering promise.",
    "bootstrap": "Run the server that gives a domain's participants their ids.",
    "broker": "Run one broker that speaks the Kafka wire protocol.",
    "channel": "Run the relay of a group with one total order.",
    "chaos": "Put a cluster of real brokers under faults, and audit what became of it.",
    "cluster": "Run brokers that keep every partition the same, and show how they are.",
    "count": "Count bytes, characters and words of a text in a topic, on Spark.",
    "demo": "Hold an audited conference over real sockets, end to end.",
    "ingest": "Land topics in the lake, exactly once, on Spark.",
    "lab": "Run the papers' evaluations again, on Spark.",
    "metrics": "Delay, waiting, control bytes and loss of a trace, on Spark.",
    "participant": "Join a group from the shell: read and write topics.",
    "record": "Write what a participant reads to a file.",
    "replay": "Write a recorded file to its topics again.",
    "sim": "Run or replay a simulated scenario.",
    "topic": "Create, list, write, read and delete topics of a broker.",
    "vectors": "Replay worked scenarios through the algorithms of the catalog.",
    "zookeeper": "Run a ZooKeeper server from the jars that PySpark installs.",
}


class _LazyGroup(click.Group):
    """Import a command's module only when it is called: `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"orderwire.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_LazyGroup)
@click.version_option(package_name="orderwire")
def main() -> None:
    """Orderwire: publish/subscribe in which order is a quality of service."""
