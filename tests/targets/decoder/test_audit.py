from __future__ import annotations

from targets.models import Model
from targets.protocol import Reason
from tests.targets.decoder.driving import drain, opened, request, submit

REST = "allocated=524288, counts={'chunked': 0})"


def test_an_audit_tells_who_owns_what_all_through_a_small_story(tiny: Model) -> None:
    decoder = opened(tiny, slots=2)
    accounts = [repr(decoder.audit())]
    submit(decoder, request(1, 2, 3, new=2), request(4, new=5), request(5, new=5))
    accounts.append(repr(decoder.audit()))
    for _ in range(3):  # #0 ends in the second step, and #2 takes its slot in the third
        decoder.step()
        accounts.append(repr(decoder.audit()))
    decoder.cancel(1, Reason.CANCELLED)
    accounts.append(repr(decoder.audit()))
    drain(decoder)
    accounts.append(repr(decoder.audit()))
    assert accounts == [
        "Audit(held=(), free=(1, 0), queued=(), slots=2, " + REST,
        "Audit(held=(), free=(1, 0), queued=(0, 1, 2), slots=2, " + REST,
        "Audit(held=(Holding(slot=0, owners=(0,), cells=3, visible=3), Holding(slot=1, owners=(1,), cells=1, visible=1)), "
        "free=(), queued=(2,), slots=2, " + REST,
        "Audit(held=(Holding(slot=1, owners=(1,), cells=2, visible=2),), free=(0,), queued=(2,), slots=2, " + REST,
        "Audit(held=(Holding(slot=0, owners=(2,), cells=1, visible=1), Holding(slot=1, owners=(1,), cells=3, visible=3)), "
        "free=(), queued=(), slots=2, " + REST,
        "Audit(held=(Holding(slot=0, owners=(2,), cells=1, visible=1),), free=(1,), queued=(), slots=2, " + REST,
        "Audit(held=(), free=(1, 0), queued=(), slots=2, " + REST,
    ]


def test_an_audit_shows_a_row_and_a_scheduler_that_disagree(tiny: Model) -> None:
    decoder = opened(tiny, slots=2)
    submit(decoder, request(1, new=5), request(2, new=5))
    decoder.step()
    decoder.scheduler.owners[1] = 7
    assert [holding.owners for holding in decoder.audit().held] == [(0,), (1, 7)]
