"""What can go wrong with the audit trail. Class = cause."""


class AuditError(Exception):
    """Base of the trail's errors."""


class TrailIsAppendOnly(AuditError):
    """An entry cannot be changed or deleted."""
