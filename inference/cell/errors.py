"""What can go wrong between a process and its Redis."""


class StoreUnavailable(Exception):
    """Redis did not answer, or is not the incarnation that the operation began in; start again at the database."""


class IncarnationChanged(StoreUnavailable):
    """Another incarnation of Redis answers than the operation began in. Nothing was sent to it."""
