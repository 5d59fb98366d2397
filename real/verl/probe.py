"""Ask the installed verl, in a fresh process, if it found us; prints one JSON object (`validation.doctor`).

``losses`` must run without ``VERL_USE_EXTERNAL_MODULES``, so that verl's own plugin mechanism is what is
tested.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def losses() -> dict[str, Any]:
    """Names verl registered by itself, those it lacks, and what our own import of the plugin raises."""
    import verl  # noqa: F401 - loads the plugins
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    names = [str(n) for registry in (POLICY_LOSS_REGISTRY, ADV_ESTIMATOR_REGISTRY) for n in registry]
    found = sorted(n for n in names if n.startswith("lagfloor-"))
    try:
        import real.verl.plugin  # noqa: F401
        from real.verl.losses import REGISTERED
    except Exception as error:
        return {"found": found, "missing": ["lagfloor-*"], "why": f"{type(error).__name__}: {error}"}
    return {"found": found, "missing": sorted(set(REGISTERED) - set(found)), "why": ""}


def trainer() -> dict[str, Any]:
    """Class behind the trainer's mode, and the samplers whose settings verl accepts."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    from real.verl.launch import SAMPLERS, Settings, compose, overrides

    for sampler in SAMPLERS:
        compose(overrides(Settings(sampler=sampler)))  # type: ignore[arg-type]
    return {"trainer": get_trainer_cls("lag_gated").__name__, "samplers": list(SAMPLERS)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({"losses": losses, "trainer": trainer}[sys.argv[1]]()))
