"""What users import in their tests: `sandbox`. The suite for backends is in `holdfast.testing.conformance`."""

from ..clock import ManualClock
from .sandbox import Sandbox, sandbox

__all__ = ["ManualClock", "Sandbox", "sandbox"]
