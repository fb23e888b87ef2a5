"""Tables of a report's HTML, as a reader sees them."""

from html.parser import HTMLParser


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self._title = ""
        self._open = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open = tag
        if tag == "h2":
            self._title = ""
        elif tag == "tr":
            self.found.setdefault(self._title, []).append([])
        elif tag in ("td", "th"):
            self.found[self._title][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "h2":
            self._title += data
        elif self._open in ("td", "th"):
            self.found[self._title][-1][-1] += data


def tables_of(page: str) -> dict[str, list[dict[str, str]]]:
    """The rows of the table below each heading, by column."""
    reader = _Tables()
    reader.feed(page)
    return {
        title: [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        for title, rows in reader.found.items()
    }


def assert_replicas_as_told(page: str, told: dict[str, object]) -> None:
    """The page has the numbers of the demo's JSON."""
    tables = tables_of(page)
    places, checks = told["places"], told["audit"]["checks"]  # type: ignore[index]
    assert isinstance(places, list)
    rows = tables["What the replicas did"]
    assert len(rows) == len(places) == told["partitions"]
    for row, one in zip(rows, places, strict=True):
        assert (row["topic"], row["partition"]) == (one["topic"], str(one["partition"]))
        assert (row["original"], row["epoch"]) == (str(one["original"]), str(one["epoch"]))
        assert row["in sync"].split() == [str(broker) for broker in one["isr"]]
        gap = one["took_over_s"]
        assert row["gap s"] == ("–" if gap is None else f"{gap:.2f}")
        for what, counts in (("written", one["taken_bytes"]), ("read", one["sent_bytes"])):
            whole = sum(counts)
            for broker, count in enumerate(counts):
                share = row[f"{what} at {broker}"]
                if not whole:
                    assert share == "–"
                else:
                    assert abs(float(share.rstrip("%")) - 100 * count / whole) <= 0.5
    assert [
        (row["check"], row["verdict"], row["examined"], row["violations"])
        for row in tables["What the replicas' audit checked"]
    ] == [
        (one["id"], one["verdict"], f"{one['examined']:,}", f"{one['violations']:,}")
        for one in checks
    ]
    for number in (told["took_over_s"], told["in_sync_s"]):
        assert number is None or f"{number:.2f} s" in page
