"""Option objects: frozen, validated on creation.

Called by the app, tasks, the worker and the command line. Pure. Durations are given as seconds or timedelta and kept
as float seconds; rates are given as text.
"""

from .checks import COUNT_MAX, Duration, QueueOptions, one_of, queue_name, said_limit, said_rate, said_weight, whole
from .families import Retention, Unique, ungrouped
from .special import RESET, UNLIMITED, Special
from .tasks import (
    ARGS_BYTES_MAX,
    BATCH_WITHIN_SECONDS,
    CALL_OPTIONS,
    NO_KEY,
    RESULT_BYTES_MAX,
    Chooser,
    OnConflict,
    OnTimeout,
    Order,
    OrderChooser,
    TaskOptions,
    encode_call_options,
    how_held,
    order_number,
    serial_group,
)
from .workers import LEASE_DEFAULT, SLOTS_ASYNC, SLOTS_DEFAULT, LogJobs, OnFence, Priorities, QueueOrder, WorkerOptions

__all__ = [
    "ARGS_BYTES_MAX",
    "BATCH_WITHIN_SECONDS",
    "CALL_OPTIONS",
    "COUNT_MAX",
    "LEASE_DEFAULT",
    "NO_KEY",
    "RESET",
    "RESULT_BYTES_MAX",
    "SLOTS_ASYNC",
    "SLOTS_DEFAULT",
    "UNLIMITED",
    "Chooser",
    "Duration",
    "LogJobs",
    "OnConflict",
    "OnFence",
    "OnTimeout",
    "Order",
    "OrderChooser",
    "Priorities",
    "QueueOptions",
    "QueueOrder",
    "Retention",
    "Special",
    "TaskOptions",
    "Unique",
    "WorkerOptions",
    "encode_call_options",
    "how_held",
    "one_of",
    "order_number",
    "queue_name",
    "said_limit",
    "said_rate",
    "said_weight",
    "serial_group",
    "ungrouped",
    "whole",
]
