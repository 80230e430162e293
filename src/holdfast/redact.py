"""Which values a page hides although the visitor may see arguments: passwords, tokens, card numbers.

A hook of the user's own (`create(redact=…)`) comes after the built-in one and may hide more, never less.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

HIDDEN = "•••• hidden by key"
_SECRET = re.compile(
    r"passw|secret|token|api_?key|authori[sz]ation|credential|private_?key|card_?n|cvc|cvv|iban|ssn", re.I
)
Hook = Callable[[str, str, Any], Any]  # task, key, value → what is shown instead


class Redact:
    """Called with a task's name and its arguments as JSON values."""

    def __init__(self, hook: Hook | None) -> None:
        self._hook = hook

    def __call__(self, task: str, value: Any, key: str = "") -> Any:
        if key and _SECRET.search(key):
            return HIDDEN
        if isinstance(value, dict):
            return {name: self(task, one, str(name)) for name, one in value.items()}
        if isinstance(value, list):
            return [self(task, one, key) for one in value]
        return value if self._hook is None else self._hook(task, key, value)
