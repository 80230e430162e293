"""What users import in their tests: `sandbox`. The backend test suite is `holdfast.testing.conformance`."""

from ..clock import ManualClock
from .sandbox import Sandbox, sandbox

__all__ = ["ManualClock", "Sandbox", "sandbox"]
