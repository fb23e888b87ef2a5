"""Item of a paper → code → test: write docs/papers.md, or check it and every tag (`--check`).

Each `<key>.toml` lists the items of one paper: `[[item]]` with `id` ("def.2"), `what` (in our
words) and, for what we do not implement, `skip` (the reason).  Code and tests cite an item by its
tag, `[S000:def.2]` or `S000:def.2` in a `paper` marker; that is how the table finds them.
"""

import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "papers.md"
TAG = re.compile(
    r"\b([SA-Z]\d{2,3}):((?:def|thm|lem|eq|alg|fig|tab|sec|dec)\.[0-9A-Za-z.]*[0-9A-Za-z])"
)


def citations(folder: str, suffixes: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """Return (key, item) → files below `folder` that cite it."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in suffixes and path.is_file():
            for key, item in TAG.findall(path.read_text(errors="replace")):
                found[key, item].add(path.relative_to(ROOT).as_posix())
    return {tag: sorted(files) for tag, files in found.items()}


def main() -> int:
    """Build the table; return 1 when a tag is unknown, an item uncited, or the table stale."""
    code = citations("src", (".py",))
    tests = citations("tests", (".py", ".json"))
    for tag, files in citations("experiments", (".toml",)).items():
        code[tag] = sorted({*code.get(tag, []), *files})
    wrong: list[str] = []
    lines = [
        "# Papers → code → tests",
        "",
        "Written by `just papers` from `docs/papers/*.toml`; do not edit.",
    ]
    known: set[tuple[str, str]] = set()
    keys: set[str] = set()
    for path in sorted((ROOT / "docs" / "papers").glob("*.toml")):
        paper = tomllib.loads(path.read_text())
        key = paper["key"]
        keys.add(key)
        lines += [
            "",
            f"## {key}: {paper['title']}",
            "",
            f"{paper['authors']}, {paper['year']}.",
            "",
        ]
        lines += ["| item | what it says | code | tests |", "|---|---|---|---|"]
        for item in paper["item"]:
            tag = (key, item["id"])
            if tag in known:
                wrong.append(f"{path.name}: {item['id']} is listed twice")
            known.add(tag)
            if "skip" in item:
                lines.append(f"| {item['id']} | {item['what']} | – | {item['skip']} |")
                continue
            if tag not in code and tag not in tests:
                wrong.append(
                    f"{path.name}: nothing cites {key}:{item['id']}; cite it or give `skip`"
                )
            cells = [
                "<br>".join(f"`{Path(file).name}`" for file in found.get(tag, ())) or "–"
                for found in (code, tests)
            ]
            lines.append(f"| {item['id']} | {item['what']} | {cells[0]} | {cells[1]} |")
    for tag, files in sorted({**code, **tests}.items()):
        if tag[0] in keys and tag not in known:
            wrong.append(f"{files[0]}: unknown item {tag[0]}:{tag[1]}")
    text = "\n".join(lines) + "\n"
    if "--check" in sys.argv:
        if not TABLE.exists() or TABLE.read_text() != text:
            wrong.append("docs/papers.md is stale: run `just papers`")
    else:
        TABLE.write_text(text)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
