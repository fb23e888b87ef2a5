"""The table of served APIs, by key."""

from orderwire.broker.wire.api import Api
from orderwire.broker.wire.generated.table import APIS, ApiKey

__all__ = ["APIS", "API_BY_KEY", "Api", "ApiKey"]

API_BY_KEY: dict[int, Api] = {api.key: api for api in APIS}
"""Every API we answer; a request with another key closes its connection."""
