"""One self-contained HTML file: verdicts, figures as inline SVG, tables."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import msgspec


class Table(msgspec.Struct, frozen=True):
    """A plain table; numbers are set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A heading (unless empty), a sentence, then a figure or a table or both."""

    title: str
    text: str = ""
    svg: Path | None = None
    table: Table | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A figure one would rather read from afar."""

    label: str
    value: str
    good: bool | None = None
    """Green, red, or neither."""


_PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; --ink: #22272e; --soft: #57606a; --line: #e1e5ea; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); margin: 0 auto;
       max-width: 62rem; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; } h2 { margin: 2.6rem 0 .3rem; font-size: 1.25rem; }
p { color: var(--soft); margin: .2rem 0 .8rem; }
.verdicts { display: grid; gap: .8rem; margin: 1.6rem 0;
            grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); }
.verdict { border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; }
.verdict b { display: block; font-size: 1.55rem; font-weight: 650; }
.verdict span { color: var(--soft); font-size: .9rem; }
.good b { color: #1a7f37; } .bad b { color: #cf222e; }
svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; margin: .4rem 0; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { margin-top: 3rem; color: var(--soft); font-size: .9rem; }
</style></head><body>
<h1>$title</h1><p>$subtitle</p>
<div class="verdicts">$verdicts</div>
$sections
<footer>$footer</footer>
</body></html>
"""
)


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _table(table: Table) -> str:
    numeric = [
        bool(table.rows)
        and all(isinstance(row[at], int | float) and row[at] is not True for row in table.rows)
        for at in range(len(table.columns))
    ]
    kinds = [' class="number"' if number else "" for number in numeric]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>" for name, kind in zip(table.columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{_cell(v)}</td>" for v, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _svg(path: Path, number: int) -> str:
    """Inline a figure; its ids get a prefix, since ids are one namespace in a page."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    prefix = f"f{number}-"
    for mark in ('id="', "url(#", 'href="#'):
        text = text.replace(mark, mark + prefix)
    return f'<div class="wide">{text}</div>'


def write_report(
    path: Path,
    *,
    title: str,
    subtitle: str,
    verdicts: Sequence[Verdict],
    sections: Sequence[Section],
    footer: str,
) -> Path:
    """Write the page and return its path."""
    colours = {True: " good", False: " bad", None: ""}
    cards = "".join(
        f'<div class="verdict{colours[verdict.good]}"><b>{escape(verdict.value)}</b>'
        f"<span>{escape(verdict.label)}</span></div>"
        for verdict in verdicts
    )
    parts = []
    for number, section in enumerate(sections):
        if section.title:
            parts.append(f"<h2>{escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{escape(section.text)}</p>")
        if section.svg is not None:
            parts.append(_svg(section.svg, number))
        if section.table is not None:
            parts.append(_table(section.table))
    path.write_text(
        _PAGE.substitute(
            title=escape(title),
            subtitle=escape(subtitle),
            verdicts=cards,
            sections="\n".join(parts),
            footer=escape(footer),
        ),
        encoding="utf-8",
    )
    return path
