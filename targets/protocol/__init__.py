"""The vocabulary that all four floors share: what was asked, what happened, what a target is, what can be wrong.

Data and protocols only: no decoder, no oracle, no I/O. Imports nothing of slotfuzz outside this folder.
"""

from targets.protocol.errors import BadInput
from targets.protocol.events import (
    Admitted,
    Asked,
    Audit,
    Audited,
    Crashed,
    Emitted,
    Event,
    Finished,
    Freed,
    Holding,
    Reason,
    Refused,
    Stalled,
    Stepped,
    Trace,
    digest,
    emitted_by_submission,
    first_departure,
    skeleton,
)
from targets.protocol.knobs import Knob, Setting, check_settings, with_defaults
from targets.protocol.schedule import (
    Cancel,
    Op,
    Request,
    Schedule,
    Step,
    Submit,
    Wait,
    format_schedule,
    submissions,
)
from targets.protocol.target import Control, Factory, Target
from targets.protocol.verdicts import CheckName, Kind

__all__ = [
    "Admitted",
    "Asked",
    "Audit",
    "Audited",
    "BadInput",
    "Cancel",
    "CheckName",
    "Control",
    "Crashed",
    "Emitted",
    "Event",
    "Factory",
    "Finished",
    "Freed",
    "Holding",
    "Kind",
    "Knob",
    "Op",
    "Reason",
    "Refused",
    "Request",
    "Schedule",
    "Setting",
    "Stalled",
    "Step",
    "Stepped",
    "Submit",
    "Target",
    "Trace",
    "Wait",
    "check_settings",
    "digest",
    "emitted_by_submission",
    "first_departure",
    "format_schedule",
    "skeleton",
    "submissions",
    "with_defaults",
]
