"""What can go wrong between a topic, the lake and a job; each error names where."""

from orderwire.kernel import LocalProtocolError, OrderwireError


class PipelineError(OrderwireError):
    """Anything the pipeline raises on purpose."""


class OptionError(PipelineError, LocalProtocolError):
    """An option of the source is missing, unknown, or has a value that cannot be used."""


class UnknownTopicError(PipelineError):
    """A subscribed topic, or a partition named in an option, does not exist."""


class DataLossError(PipelineError):
    """Records of the asked range are gone; with `failOnDataLoss=false` they are skipped."""


class OffsetsWentBackError(DataLossError):
    """A partition ends below an offset that was read before: recreated, or cut short."""


class ReadStuckError(PipelineError):
    """No progress within the time limit.  Not a loss: the records may still be there."""


class LakeError(PipelineError):
    """A table of the lake cannot be read or written the way it was asked for."""
