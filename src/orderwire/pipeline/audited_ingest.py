"""A trace topic into the lake and through the live audit, in one query over one reading."""

from pyspark.sql import DataFrame

from orderwire.pipeline.ingest import CHECKPOINTS, application_of, land_trace
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.live_audit import LiveAudit, RunningAudit


def start_audited_ingest(
    records: DataFrame, audit: LiveAudit, lake: Lake, *, every: str
) -> RunningAudit:
    """Start a query over a stream of trace records; `every` is the time between micro-batches.

    Audit and lake each know the batches that they have taken, so a replayed batch counts once in
    both, whichever of them a crash left behind.
    """
    checkpoint = lake.root / CHECKPOINTS / "audited"
    land = land_trace(lake, application_of(checkpoint))

    def take(batch_records: DataFrame, batch: int) -> None:
        kept = batch_records.persist()
        try:
            land(kept, batch)
            audit.take(kept, batch)
        finally:
            kept.unpersist()

    query = (
        records.writeStream.queryName("audited ingest")
        .foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=every)
        .start()
    )
    return RunningAudit(audit, query)
