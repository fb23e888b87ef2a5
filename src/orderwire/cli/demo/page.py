"""The demo's report: figures and tables one would rather look at than read."""

from pathlib import Path

import numpy as np

from orderwire.cli.demo.findings import Findings, control_bytes, summary
from orderwire.cli.demo.floor import floor_holds, floor_sections
from orderwire.cli.demo.replicas import replica_sections, replicas_hold
from orderwire.cli.demo.settings import CONTROL, DISCOVERY, LIFETIME_MS, ORDERED, AnalystSettings
from orderwire.kernel import NS_PER_S
from orderwire.report.discovery_cost import pairs_figure, traffic_figure
from orderwire.report.discovery_figure import discovery_figure
from orderwire.report.figures import (
    Histogram,
    control_bytes_figure,
    delay_figure,
    member_share_figure,
)
from orderwire.report.html import Section, Table, Verdict, write_report
from orderwire.report.space_time import space_time_figure
from orderwire.report.style import save


def write_page(folder: Path, settings: AnalystSettings, found: Findings) -> Path:
    """Write figures (SVG, PNG) and `report.html` into the folder; return the page's path."""
    path = folder / "report.html"
    told = summary(found, path)
    figures = folder / "figures"
    sections: list[Section] = []
    if found.inversion is not None:
        figure = space_time_figure(found.around, found.inversion, settings.members)
        sections.append(
            Section(
                title="What goes wrong without order",
                text="The control group's first violation. A dot is a send, an arrowhead a"
                " delivery, the cross the delivery that came too late. The same messages in the"
                " ordered group waited for one another.",
                svg=save(figure, figures, "first-violation")[0],
            )
        )
    delays = {
        group: Histogram(
            np.array([bucket.upper_ms for bucket in buckets]),
            np.array([bucket.count for bucket in buckets], dtype=np.int64),
        )
        for group, buckets in found.delays.items()
    }
    sections.append(
        Section(
            title="What the order costs in time",
            text="Both groups met the same network; the ordered one waits where it must.",
            svg=save(delay_figure(delays, LIFETIME_MS), figures, "delays")[0],
            table=_delay_table(found),
        )
    )
    sections.append(_control_section(found, figures))
    names = settings.members
    for group in (ORDERED, CONTROL):
        members = found.metrics[group].members
        outcomes = {
            outcome: [getattr(members[at], outcome) for at in range(len(names))]
            for outcome in ("delivered", "late", "lost")
        }
        figure = member_share_figure(names, outcomes, f"Copies for each member, {group} group")
        svg = save(figure, figures, f"members-{group}")[0]
        title = "Who got what" if group == ORDERED else ""
        sections.append(Section(title=title, svg=svg))
    sections += _discovery_sections(found, figures)
    sections += floor_sections(told["book"], found.floor, figures)
    sections += replica_sections(told["replicas"])
    sections.append(_audit_section(found))
    sections.append(_text_section(found))
    return write_report(
        path,
        title="A conference, audited",
        subtitle=f"Run {settings.run}: {len(names)} members over loopback sockets that delay, lose,"
        f" duplicate and reorder; messages live {LIFETIME_MS} ms.",
        verdicts=_verdicts(told),
        sections=sections,
        footer="Every figure here was computed by Spark from the trace that went through the"
        " broker; the tables are in the folder `lake`.",
    )


def _verdicts(told: dict[str, object]) -> list[Verdict]:
    groups = {name: told[name] for name in (ORDERED, CONTROL)}
    cards = []
    for name, group in groups.items():
        assert isinstance(group, dict)
        count = group["violations"]
        good = count == 0 if name == ORDERED else None
        cards.append(
            Verdict(label=f"order violations, {name} group", value=f"{count:,}", good=good)
        )
    ordered, text = groups[ORDERED], told["text"]
    assert isinstance(ordered, dict)
    assert isinstance(text, dict)
    seen = told["discovery"]
    assert isinstance(seen, dict)
    cards.append(
        Verdict(
            label="discovery, by the audit",
            value=str(seen["verdict"]),
            good=seen["verdict"] == "VALID",
        )
    )
    kept = told["replicas"]
    assert isinstance(kept, dict)
    cards.append(
        Verdict(
            label=f"replicas, one of {kept['replicas']} killed",
            value=str(kept["audit"]["verdict"]) if kept["equal"] else "differ",
            good=replicas_hold(kept),
        )
    )
    book = told["book"]
    assert isinstance(book, dict)
    cards.append(
        Verdict(
            label="one order book, its relay killed",
            value=str(book["audit"]["verdict"]) if book["equal"] else "differs",
            good=floor_holds(book),
        )
    )
    share = ordered["delivered"] / max(1, ordered["written"])
    cards.append(Verdict(label="of the ordered group's copies in time", value=f"{share:.2%}"))
    costs = told["control_bytes"]
    assert isinstance(costs, dict)
    cards.append(Verdict(label="control bytes a copy", value=f"{costs['ours']:.1f}"))
    cards.append(
        Verdict(
            label="text read back by Spark",
            value="equal" if text["matches_file"] else "differs",
            good=bool(text["matches_file"]),
        )
    )
    return cards


def _delay_table(found: Findings) -> Table:
    rows: list[list[object]] = []
    for group in (ORDERED, CONTROL):
        total = found.metrics[group].total
        delay, hold = total.delay_ms, total.hold_ms
        if delay is None or hold is None:
            continue
        rows.append(
            [
                group,
                delay.p50,
                delay.p90,
                delay.p99,
                delay.max,
                hold.mean,
                f"{total.held_share or 0.0:.1%}",
            ]
        )
    return Table(
        ["group", "p50 ms", "p90 ms", "p99 ms", "max ms", "mean wait for order ms", "held"], rows
    )


def _control_section(found: Findings, figures: Path) -> Section:
    metrics = found.metrics[ORDERED]
    windows = [window for window in metrics.windows if window.copies]
    seconds = np.array(
        [max(0, window.start_ns - metrics.first_ns) / NS_PER_S for window in windows]
    )
    ours = np.array([window.control_bytes / window.copies for window in windows])
    costs = control_bytes(found)
    rivals = {
        "matrix clock (RST)": costs["rst_matrix"],
        "vector clock": costs["vector_clock"],
    }
    figure = control_bytes_figure(seconds, ours, rivals)
    return Section(
        title="What the order costs in bytes",
        text="Ours is all that was on the wire but the payload, stamp and destination set included."
        " The lines are tags alone, 4 bytes an integer; a vector clock orders broadcasts only.",
        svg=save(figure, figures, "control-bytes")[0],
    )


def _discovery_sections(found: Findings, figures: Path) -> list[Section]:
    """Show who found whom when, and what that took."""
    seen = found.run(DISCOVERY).discovery
    if seen is None or found.known is None:
        return []
    rows: list[list[object]] = [
        [
            message.message,
            message.posted,
            message.posted_bytes,
            message.heard,
            message.heard_bytes,
            " ".join(f"{hop}:{count}" for hop, count in sorted(message.hops.items())),
        ]
        for message in seen.messages
    ]
    columns = ["message", "posted", "bytes", "heard", "bytes heard", "heard after hops"]
    return [
        Section(
            title="Who found whom, and when",
            text="Nobody was given a list: members and guest learnt of each other from a server"
            " that gives ids, and from one another. The guest was killed (×) and came back (|).",
            svg=save(discovery_figure(found.known), figures, "discovery")[0],
        ),
        Section(title="", svg=save(pairs_figure(seen), figures, "discovery-pairs")[0]),
        Section(
            title="What finding each other cost",
            text="Messages of discovery that left a member; those of the server are only heard.",
            svg=save(traffic_figure(seen), figures, "discovery-traffic")[0],
            table=Table(columns, rows),
        ),
    ]


def _audit_section(found: Findings) -> Section:
    rows: list[list[object]] = [
        [
            group,
            check.id,
            check.title,
            "yes" if check.promised else "no",
            check.verdict.value,
            check.violations,
        ]
        for group in (ORDERED, CONTROL, DISCOVERY)
        for check in found.run(group).checks
    ]
    return Section(
        title="What the audit checked",
        table=Table(["run", "check", "what", "promised", "verdict", "violations"], rows),
    )


def _text_section(found: Findings) -> Section:
    rows: list[list[object]] = [
        [chapter.heading or "(before the first)", *_counts(chapter.counts)]
        for chapter in found.text.chapters
    ]
    rows.append(["all, by Spark", *_counts(found.text.total)])
    rows.append(["the file itself", *_counts(found.file)])
    return Section(
        title="The text, chapter by chapter",
        text="Written to a durable topic as 100-byte messages and counted by Spark; a cut may fall"
        " inside a word or a character.",
        table=Table(["chapter", "bytes", "characters", "words"], rows),
    )


def _counts(counts: object) -> list[int]:
    return [getattr(counts, name) for name in ("bytes", "characters", "words")]
