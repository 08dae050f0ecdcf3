"""The checks, one file each.

`CHECKS` has all of them by name, the cheap ones first; `ROUTINE` names those that every schedule is asked. The others are
asked when there is a reason.
"""

from oracle.case import Check
from oracle.checks.bookkeeping import bookkeeping
from oracle.checks.echo import echo
from oracle.checks.isolation import isolation
from oracle.checks.ownership import ownership
from oracle.checks.progress import progress
from oracle.checks.provenance import provenance
from oracle.checks.repeat import repeat
from oracle.checks.residue import residue
from oracle.checks.survival import survival
from oracle.checks.swap import swap
from oracle.checks.warmth import warmth
from targets.protocol import CheckName

CHECKS: dict[CheckName, Check] = {
    CheckName.SURVIVAL: survival,
    CheckName.PROGRESS: progress,
    CheckName.BOOKKEEPING: bookkeeping,
    CheckName.ECHO: echo,
    CheckName.OWNERSHIP: ownership,
    CheckName.PROVENANCE: provenance,
    CheckName.WARMTH: warmth,
    CheckName.ISOLATION: isolation,
    CheckName.SWAP: swap,
    CheckName.RESIDUE: residue,
    CheckName.REPEAT: repeat,
}
ROUTINE = tuple(name for name in CHECKS if name is not CheckName.REPEAT)

__all__ = ["CHECKS", "ROUTINE"]
