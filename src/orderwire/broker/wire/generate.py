"""Writes the generated codec: `python -m orderwire.broker.wire.generate [FOLDER]`.

Reads Apache Kafka's message definitions (see `definitions`), clips them to `versions`, and writes
one typed module per API, one for the headers, one for the consumer protocol's data, and a table.
Running it again changes nothing; a test sees to that.
"""

import subprocess
import sys
from pathlib import Path

from orderwire.broker.wire.definitions import Message, Versions, load_message, snake_case
from orderwire.broker.wire.emit import HEADER, ModuleWriter
from orderwire.broker.wire.versions import DATA_MESSAGES, SERVED, ServedApi

_GENERATED = Path(__file__).parent / "generated"


def modules() -> dict[str, str]:
    """Generate every module: file name → formatted source."""
    sources = {"__init__.py": f'"""Codecs generated from Kafka\'s definitions."""\n{HEADER}'}
    for api in SERVED:
        sources[f"{snake_case(api.name)}.py"] = _api_module(api)
    headers = ModuleWriter("Request and response headers.")
    for name in ("RequestHeader", "ResponseHeader"):
        message = load_message(name)
        headers.add(message, message.versions)
    sources["headers.py"] = headers.source()
    data = ModuleWriter("What classic consumers put into JoinGroup and SyncGroup.")
    for name in DATA_MESSAGES:
        message = load_message(name)
        data.add(message, message.versions)
    sources["consumer_protocol.py"] = data.source()
    sources["table.py"] = _table()
    return {name: _formatted(name, source) for name, source in sources.items()}


def _served(api: ServedApi, direction: str) -> tuple[Message, Versions]:
    message = load_message(api.name + direction)
    assert api.oldest in message.versions, f"{message.name} has no version {api.oldest}"
    assert api.newest in message.versions, f"{message.name} has no version {api.newest}"
    return message, Versions(api.oldest, api.newest)


def _api_module(api: ServedApi) -> str:
    writer = ModuleWriter(f"{api.name}, versions {api.oldest} to {api.newest}.")
    for direction in ("Request", "Response"):
        writer.add(*_served(api, direction))
    return writer.source()


def _table() -> str:
    lines = ['"""Every served API with its codec."""', HEADER, "import enum", ""]
    lines.append("from orderwire.broker.wire.api import Api")
    names = {api.name: snake_case(api.name) for api in SERVED}
    lines.append("from orderwire.broker.wire.generated import (")
    lines += [f"    {name}," for name in sorted(names.values())]
    lines += [")", "", "", "class ApiKey(enum.IntEnum):", '    """Kafka\'s API keys."""', ""]
    keys = {api.name: load_message(f"{api.name}Request").api_key for api in SERVED}
    lines += [f"    {snake_case(name).upper()} = {key}" for name, key in sorted(_by_key(keys))]
    lines += ["", "", "APIS: tuple[Api, ...] = ("]
    for api in sorted(SERVED, key=lambda api: keys[api.name]):
        name = names[api.name]
        flexible = load_message(f"{api.name}Request").flexible
        advertised = api.oldest if api.advertised_oldest is None else api.advertised_oldest
        lines += [
            "    Api(",
            f"        key={keys[api.name]},",
            f'        name="{api.name}",',
            f"        oldest={api.oldest},",
            f"        newest={api.newest},",
            f"        advertised_oldest={advertised},",
            f"        flexible_from={flexible.first if flexible.last else 'None'},",
        ]
        for direction in ("request", "response"):
            lines += [
                f"        decode_{direction}={name}.decode_{name}_{direction},",
                f"        encode_{direction}={name}.encode_{name}_{direction},",
            ]
        lines.append("    ),")
    lines.append(")")
    return "\n".join(lines) + "\n"


def _by_key(keys: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(keys.items(), key=lambda item: item[1])


def _formatted(name: str, source: str) -> str:
    """Let ruff lay out the source, so that checked-in files pass the format check."""
    arguments = ["--line-length", "100", "--isolated", "--stdin-filename", name, "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", *arguments],
        input=source.encode(),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


def main() -> None:
    """Write the modules into the folder given, by default the package's own."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _GENERATED
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in modules().items():
        (folder / name).write_text(source, "utf-8")


if __name__ == "__main__":
    main()
