"""A Spark Connect client, in a process of its own, as `test_connect.py` starts it.

Arguments: TOPIC@HOST:PORT, a trace in Parquet, a folder for the live audit.  Its session is at the
address in SPARK_REMOTE.  It prints what it found as a line of JSON.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from orderwire.pipeline.audit_jobs import audit_frame
from orderwire.pipeline.ingest import TopicSource
from orderwire.pipeline.live_audit import LiveAudit, start_live_audit


def main(topic_at: str, trace: str, folder: str) -> None:
    topic, _, servers = topic_at.partition("@")
    spark = SparkSession.builder.getOrCreate()
    source = TopicSource(bootstrap=servers)
    records = source.batch(spark, topic)
    with audit_frame(spark.read.parquet(trace)) as found:
        framed = found.report
    live = LiveAudit(Path(folder))
    streamed = start_live_audit(source.stream(spark, topic), live).finish(60)
    told = {
        "session": type(spark).__module__,
        "records": records.count(),
        "frame": framed.verdict.value,
        "frame_accounting": framed.runs[0].accounting,
        "live": streamed.verdict.value,
        "live_accounting": streamed.runs[0].accounting,
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
