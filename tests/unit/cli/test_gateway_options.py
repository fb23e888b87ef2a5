"""`--gateway` and its kin: what they say, and what they cannot mean."""

import click
import pytest
from click.testing import CliRunner

from orderwire.cli.joining import Joining, joins_group
from orderwire.participant.backbone import Backbone

DOMAIN = ("--me=a", "--bootstrap=127.0.0.1:1")


def parsed(*options: str) -> tuple[list[Backbone], str]:
    """Return the backbones of these options, or what is wrong with them."""
    seen: list[Backbone] = []

    @click.command()
    @joins_group("fifo")
    def command(joining: Joining) -> None:
        joining.participant()
        seen.extend(joining.gateways.backbones(insecure=joining.insecure))

    result = CliRunner().invoke(command, options)
    return seen, " ".join(result.output.split())


def test_each_backbone_has_its_own() -> None:
    seen, said = parsed(
        *DOMAIN,
        "--gateway=x=127.0.0.1:2",
        "--gateway-seed=y=127.0.0.1:3",
        "--gateway-seed=y=127.0.0.1:4",
        "--gateway-listen=y=127.0.0.1:3",
        "--gateway-advertise=y=10.0.0.1",
    )
    assert said == ""
    assert seen == [
        Backbone(domain="x", bootstrap="127.0.0.1:2"),
        Backbone(
            domain="y",
            seeds=("127.0.0.1:3", "127.0.0.1:4"),
            listen="127.0.0.1:3",
            advertise="10.0.0.1",
        ),
    ]
    assert parsed(*DOMAIN) == ([], "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*DOMAIN, "--gateway=x"), "write BACKBONE=HOST:PORT"),
        ((*DOMAIN, "--gateway=x=1:1", "--gateway=x=1:2"), "--gateway x=… is given twice"),
        ((*DOMAIN, "--gateway-listen=x=1:1"), "give --gateway or --gateway-seed for it, too"),
        ((*DOMAIN, "--gateway-cert=pyproject.toml", "--gateway=x=1:1"), "give all three"),
        (("--me=a", "--member=a=127.0.0.1:0", "--gateway=x=1:1"), "are about discovery"),
        (("--me=a", "--member=a=127.0.0.1:0", "--interest-only"), "are about discovery"),
    ],
)
def test_what_they_cannot_mean_is_said(options: tuple[str, ...], sentence: str) -> None:
    _, said = parsed(*options)
    assert sentence in said
