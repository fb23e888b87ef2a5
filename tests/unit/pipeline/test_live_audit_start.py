"""A live audit that began before anything was traced."""

from pathlib import Path

import pyarrow as pa
import pytest

from orderwire.pipeline import live_audit
from orderwire.pipeline.live_audit import LiveAudit
from orderwire.verify.verdict import Verdict


class NoRecords:
    """A micro-batch of a topic that is empty, as Spark hands it over."""

    def select(self, *names: str) -> "NoRecords":
        return self

    def repartition(self, by: object) -> "NoRecords":
        return self

    def mapInArrow(self, work: object, schema: str) -> "NoRecords":
        return self

    def toArrow(self) -> pa.Table:
        return pa.table({"run_id": pa.array([], pa.string()), "violations": []})


def test_a_step_without_an_event_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_audit.F, "expr", lambda text: text)
    audit = LiveAudit(tmp_path / "audit", runs_expected=1)
    audit.take(NoRecords(), 0)  # type: ignore[arg-type]
    audit.take(NoRecords(), 1)  # type: ignore[arg-type]
    assert audit.progress().batch == 1
    assert not audit.ended
    assert audit.report().verdict is not Verdict.INVALID
