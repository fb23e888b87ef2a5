"""Options: the connector's names, and a sentence for every wrong one."""

import pytest

from orderwire.pipeline.errors import OptionError
from orderwire.pipeline.offsets import TopicPartition
from orderwire.pipeline.options import parse_options

LEAST = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}


def test_defaults_are_those_of_the_connector() -> None:
    options = parse_options(LEAST)
    assert options.topics == ("a",)
    assert options.starting is None
    assert options.ending == "latest"
    assert options.fail_on_data_loss
    assert not options.headers
    assert options.rows_max is None
    assert options.stuck_ms == 120_000


def test_names_are_case_insensitive_and_client_options_pass() -> None:
    options = parse_options(
        LEAST
        | {
            "SUBSCRIBE": "a, b",
            "StartingOffsets": '{"a": {"0": 4}}',
            "maxOffsetsPerTrigger": "10",
            "kafka.security.protocol": "SSL",
            "failOnDataLoss": "FALSE",
        }
    )
    assert options.topics == ("a", "b")
    assert options.starting == {TopicPartition("a", 0): 4}
    assert options.rows_max == 10
    assert ("security.protocol", "SSL") in options.client
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kafka.bootstrap.servers": ""}, "bootstrap.servers is missing"),
        ({"subscribe": ""}, "names no topic"),
        ({"subscribe": "a,,b"}, "names no topic"),
        ({"subscribePattern": "a.*"}, "subscribepattern is not offered"),
        ({"subscrib": "a"}, "unknown option 'subscrib'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0'"),
        ({"minPartitions": "many"}, "minPartitions='many'"),
        ({"failOnDataLoss": "yes"}, "expected true or false"),
        ({"arrowBatchRows": "2000000"}, "arrowBatchRows"),
    ],
)
def test_wrong_options_are_named(change: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parse_options(LEAST | change)
