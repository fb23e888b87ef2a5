"""A batch of an idempotent producer whose predecessor is not here: it may come yet.

Clients send several requests at once.  One is refused because nobody is original yet, the next
comes a moment later.  To OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka answers with a new epoch for all
partitions, and numbers anew what it still waits for: what of that is stored already is stored a
second time.  After NOT_ENOUGH_REPLICAS it sends both again, in order.  Who has really given a batch
up begins a new epoch by itself.  [I5, I9]
"""

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Refused


def retriable(refused: Refused) -> Refused:
    """Refuse a gap so that its producer fills it; anything else stays as it is."""
    if refused.error is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return refused
    return Refused(ErrorCode.NOT_ENOUGH_REPLICAS, refused.message)
