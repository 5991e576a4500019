"""The exceptions of slackline. Programs look at the class and the attributes, and never at the text."""

from __future__ import annotations


class Error(Exception):
    """A call of slackline failed. The text says the operation, the cause and the remedy, and so do the attributes."""

    #: The operation that failed, in a few words.
    operation: str
    #: What to do about it, in a few words, where there is something.
    remedy: str | None
    #: True if the same call may succeed later, with the same program and the same options.
    is_retryable: bool
    #: The seconds after which to ask again, where the peer refused for now and said so.
    retry_after: float | None

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        remedy: str | None = None,
        is_retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.remedy = remedy
        self.is_retryable = is_retryable
        self.retry_after = retry_after


class DeadlineError(Error, TimeoutError):
    """The time that was given has passed; the call may be repeated."""


class FramesPinned(DeadlineError):
    """Readers pinned all other frames for the time that was given; use more frames, or end pins sooner."""


class StaleError(Error):
    """The version that was asked for by its number is overwritten. Ask for a newer one, or give its owner more frames.

    A bound that was not kept within the timeout is a `DeadlineError`: the same call may succeed later.
    """


class DigestMismatch(Error):
    """A copy does not match the publisher's checksum: memory, a device or the network has damaged it."""


class PeerGone(Error, ConnectionError):
    """The peer does not listen, is lost, or took this process for dead; connect again once it is back."""


class EpochChanged(PeerGone):
    """The publisher was started again: its versions are others; connect again."""


class Refused(Error, PermissionError):
    """The peer turned this process away, or a rule that both follow: one user over shared memory, one secret over TCP."""


class LayoutMismatch(Error, ValueError):
    """Names, element types, shapes or lengths do not fit the table."""


class BadOption(Error, ValueError):
    """An option, a name, an address, its folder or a scheme that cannot be."""


class OutOfTurn(Error, RuntimeError):
    """Another call has to come first: the object is closed, pinned, or belongs to the process that forked this one."""


class Unsupported(Error, NotImplementedError):
    """The transport cannot do this, or the machine has no device for it."""


class JobFailed(Error, RuntimeError):
    """The job has failed, or its rank 0 is gone; the text has the cause."""
