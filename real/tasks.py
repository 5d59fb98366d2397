"""The tasks there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from real.countdown import COUNTDOWN
from real.long.search import SEARCH
from real.task import Task

TaskName = Literal["countdown", "search"]

TASKS: Mapping[TaskName, Task] = MappingProxyType({"countdown": COUNTDOWN, "search": SEARCH})
