"""Versions of tensors in shared memory, over TCP and RDMA: whole, and as fresh as asked for.

One process publishes versions of a table of tensors, any number of others read them::

    import numpy, slackline
    publisher = slackline.Publisher({"weight": numpy.zeros((10, 64), "float32")})
    publisher.publish({"weight": numpy.ones((10, 64), "float32")})

    reader = slackline.Reader(publisher.address)  # in another process
    weight = reader.pull()["weight"].numpy()

Every wait takes a timeout in seconds and leaves the interpreter to other threads; Ctrl-C ends it. All errors are of the
class `Error`.
"""

from collections.abc import Mapping

from ._errors import (
    BadOption,
    DeadlineError,
    DigestMismatch,
    EpochChanged,
    Error,
    FramesPinned,
    JobFailed,
    LayoutMismatch,
    OutOfTurn,
    PeerGone,
    Refused,
    StaleError,
    Unsupported,
)
from ._log import enable_logging
from ._slackline import (
    ArrayView,
    Frame,
    Gpu,
    Gradient,
    Job,
    Pin,
    Publisher,
    Reader,
    ReaderStatus,
    Relay,
    Server,
    ServerStatus,
    Snapshot,
    Step,
    Tables,
    TensorSpec,
    Verdict,
    Violation,
    Worker,
    check,
    reading_secret,
)

for _class in (Snapshot, Frame, Gradient):
    Mapping.register(_class)
del Mapping, _class

__all__ = [
    "ArrayView",
    "BadOption",
    "DeadlineError",
    "DigestMismatch",
    "EpochChanged",
    "Error",
    "Frame",
    "FramesPinned",
    "Gpu",
    "Gradient",
    "Job",
    "JobFailed",
    "LayoutMismatch",
    "OutOfTurn",
    "PeerGone",
    "Pin",
    "Publisher",
    "Reader",
    "ReaderStatus",
    "Refused",
    "Relay",
    "Server",
    "ServerStatus",
    "Snapshot",
    "StaleError",
    "Step",
    "Tables",
    "TensorSpec",
    "Unsupported",
    "Verdict",
    "Violation",
    "Worker",
    "check",
    "enable_logging",
    "reading_secret",
]
