"""Audit: do the invariants hold in this store right now?

Called by `app.audit()`, `holdfast audit`, the demo and tests. Computed from ONE dump and the flaws the store lists.
Never changes anything and never reads a clock: a condition that depends on time (an expired lease that has not been
recovered yet) is no violation. The rules themselves are in checks.py, one small function each.
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
    """Result of an audit: what was checked, and every violation found."""

    violations: list[Violation]
    checked: Mapping[str, int]  # jobs, groups, letters, workers, rules

    @property
    def holds(self) -> bool:
        return not self.violations


async def audit(backend: Backend) -> Audit:
    """Check everything in the store at one instant and list what violates the invariants.

    Data the store cannot read, or that contradicts its indexes, comes first.
    """
    return judge(await backend.dump(), await backend.flaws())


def judge(dump: Dump, flaws: Iterable[Flaw] = ()) -> Audit:
    """Audit a dump and a store's flaws: pure."""
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
