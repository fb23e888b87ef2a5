"""One builder of every Spark session: local by default, a cluster by its master's address.

Local sessions bind to 127.0.0.1, keep everything they write in one scratch folder, run their
workers on this very interpreter and log errors only.
"""

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from orderwire.kernel.java import find_java

_LOCAL = re.compile(r"local(\[|$|-cluster)")


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs from one Spark session to the next."""

    name: str = "orderwire"
    master: str = "local[2]"
    """`local[N]`, `local[N,RETRIES]`, or `spark://HOST:PORT`."""
    quick: bool = True
    """Compile with C1 and collect serially: half the start-up CPU; not for jobs of minutes."""
    memory_mib: int = 768
    """Heap of the driver's JVM; of each executor's too on a cluster."""
    shuffle_partitions: int = 2
    adaptive: bool = False
    """Adaptive execution: worth its planning only for data of gigabytes."""
    scratch: str | None = None
    """Folder for shuffle files, warehouse and temporary data; None makes one for the session."""
    more: Mapping[str, str] = {}
    """Spark settings that override ours."""


def check_java() -> int:
    """Return the major version of the Java that Spark will start.  Raises JavaMissingError."""
    return find_java("Spark")[1]


def spark_settings(settings: SessionSettings, scratch: Path) -> dict[str, str]:
    """Return Spark's own settings for a session, ours first and the caller's last."""
    flags = [f"-Dlog4j2.configurationFile={_log_settings().as_uri()}"]
    flags += [f"-Djava.io.tmpdir={scratch / 'tmp'}", f"-Dderby.system.home={scratch / 'derby'}"]
    if settings.quick:
        flags += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    ours = {
        "spark.app.name": settings.name,
        "spark.driver.memory": f"{settings.memory_mib}m",
        "spark.driver.extraJavaOptions": shlex.join(flags),
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.adaptive.enabled": str(settings.adaptive).lower(),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _LOCAL.match(settings.master):
        ours |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        }
    else:
        ours["spark.executor.memory"] = f"{settings.memory_mib}m"
    return ours | dict(settings.more)


@contextmanager
def spark_session(settings: SessionSettings | None = None) -> Iterator[SparkSession]:
    """Start a session, hand it over, stop it and remove what it left in its scratch folder.

    Raises JavaMissingError before anything is started.  One session a process: Spark itself
    shares its JVM among all of them, so a second one keeps the first one's memory and flags.
    """
    settings = settings or SessionSettings()
    check_java()
    scratch = Path(settings.scratch or tempfile.mkdtemp(prefix="orderwire-spark-"))
    (scratch / "tmp").mkdir(parents=True, exist_ok=True)
    _set_environment(local=bool(_LOCAL.match(settings.master)))
    builder = SparkSession.builder.master(settings.master)
    for name, value in spark_settings(settings, scratch).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        session.stop()
        if settings.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)


def _log_settings() -> Path:
    return Path(__file__).with_name("log4j2.properties")


def _set_environment(*, local: bool) -> None:
    """Tell the launcher what it reads from the environment only."""
    if local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
