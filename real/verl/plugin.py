"""What verl loads by itself where lagfloor is installed, by the entry point ``verl.plugins``.

verl logs a plugin that raises at level DEBUG and goes on without it; `python -m validation doctor` says so
aloud. The trainer takes ten seconds more to import and is needed on the driver alone:
``VERL_USE_EXTERNAL_MODULES``.
"""

from __future__ import annotations

from real.verl import advantages, losses

__all__ = ["advantages", "losses"]
