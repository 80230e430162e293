"""Audit: do the promises hold in this store, now?

Called by `app.audit()`, `holdfast audit`, the demo and tests. Computed from ONE dump, and from the flaws that the store
lists; never changes anything and never looks at a clock: what depends on time (a deadline that passed and is not
recovered yet) is no violation.
The rules themselves are in checks.py, one small function each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..backends.contract import Backend
from ..records import Dump, Flaw
from .checks import RULES
from .snapshot import picture_of
from .violations import Violation, named


class Audit(Struct, frozen=True, kw_only=True):
    """The answer of an audit: what was looked at, and every promise found broken."""

    violations: list[Violation]
    checked: Mapping[str, int]  # jobs, groups, letters, workers, rules

    @property
    def holds(self) -> bool:
        return not self.violations


async def audit(backend: Backend) -> Audit:
    """Look at everything in the store at one instant and list what contradicts the promises.

    What the store itself cannot read, or finds contradicting its indexes, is listed first.
    """
    return judge(await backend.dump(), await backend.flaws())


def judge(dump: Dump, flaws: Iterable[Flaw] = ()) -> Audit:
    """The audit of a dump and of a store's flaws: pure."""
    picture = picture_of(dump)
    found = [Violation(rule="readable", job_id=flaw.id, text=named(flaw)) for flaw in flaws]
    found += [violation for rule in RULES for violation in rule(picture)]
    checked = {
        "jobs": len(picture.jobs),
        "groups": len(picture.groups),
        "letters": len(picture.letters),
        "workers": len(picture.workers),
        "rules": len(RULES),
    }
    return Audit(violations=found, checked=checked)
