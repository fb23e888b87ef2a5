"""The Spark data source `orderwire`: topics over the Kafka protocol, without a jar.

Columns and options are those of Spark's own Kafka connector, so a job runs on either by its format
name.  Needs no `register` call: Spark finds `pyspark_orderwire`.

Spark starts two processes only to find and to make the class here, so what it needs is imported
late: neither numpy nor Arrow nor the client library.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from orderwire.pipeline.options import parse_options

if TYPE_CHECKING:
    from orderwire.pipeline.readers import OrderwireReader, OrderwireStreamReader

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
HEADERS_SCHEMA = ", headers array<struct<key: string, value: binary>>"


class OrderwireDataSource(DataSource):
    """Topics of a broker that speaks the Kafka protocol.

    | option | default | meaning |
    |---|---|---|
    | `kafka.bootstrap.servers` | | HOST:PORT,…; any `kafka.*` goes to the client library |
    | `subscribe` | | topic names, separated by commas |
    | `startingOffsets` | earliest; stream: latest | `earliest`, `latest`, or JSON |
    | `endingOffsets` | latest | batch only; likewise |
    | `maxOffsetsPerTrigger` | no limit | stream only: most records in a micro-batch |
    | `minPartitions` | one a range | cut ranges into about this many tasks |
    | `failOnDataLoss` | true | false skips records that are gone, and counts them |
    | `includeHeaders` | false | adds the column `headers` |
    | `kafkaConsumer.pollTimeoutMs` | 120000 | longest read without progress |
    | `fetchOffset.numRetries`, `fetchOffset.retryIntervalMs` | 3, 10 | odd offsets: ask again |
    | `arrowBatchRows` | 10000 | most records in an Arrow batch |
    | `consumerIdleMs` | 60000 | a worker's client is closed after this idle time |

    A user schema chooses columns: `.schema("partition int, offset long")` builds only those.
    """

    @classmethod
    def name(cls) -> str:
        """What `format(…)` calls it."""
        return "orderwire"

    def schema(self) -> str:
        """All columns."""
        headers = parse_options(self.options).headers
        return SCHEMA + (HEADERS_SCHEMA if headers else "")

    def reader(self, schema: StructType) -> "OrderwireReader":
        """Make the batch reader."""
        from orderwire.pipeline.readers import OrderwireReader

        return OrderwireReader(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> "OrderwireStreamReader":
        """Make the stream reader."""
        from orderwire.pipeline.readers import OrderwireStreamReader

        return OrderwireStreamReader(parse_options(self.options), schema)
