"""Spark's own Kafka connector, from Maven's repository through Maven, which keeps it at home."""

import shutil
import subprocess
from pathlib import Path

VERSION = "4.2.0"
"""The newest that Maven's repository had when PySpark was 4.3.0; it runs in that one."""
SECONDS_MAX = 300
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>connector</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
<version>{version}</version><exclusions>{excluded}</exclusions></dependency>
</dependencies></project>"""
_IN_PYSPARK = (
    "com.google.code.findbugs:jsr305",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.spark:spark-tags_2.13",
    "org.lz4:lz4-java",
    "at.yawk.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.scala-lang:scala-library",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
"""What Spark's installation has itself."""


def connector_jars(folder: Path) -> list[str]:
    """Where the jars are that a session needs; `folder` is for Maven's own use."""
    maven = shutil.which("mvn")
    assert maven is not None, "mvn is missing: install Maven (Debian: apt-get install maven)"
    excluded = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, _, artifact in (each.partition(":") for each in _IN_PYSPARK)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM.format(version=VERSION, excluded=excluded))
    path = folder / "class-path"
    done = subprocess.run(
        [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={path}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path.read_text().split(":")
