"""When to push the trainer's weights to the sampler: the rule, as a pure function."""

from __future__ import annotations

from theory.arrays import Array
from theory.limits import is_array, refuse_count, refuse_number, refuse_share

FAILURE_THRESHOLD = 0.5
"""ESS below which the articles count importance weighting as failed: there chi2 = 1, so the ratio's standard
deviation equals its mean. No phase transition sits at 1/2; any threshold from .3 to .7 moves a Gaussian
crossing by less than a third (-ln ESS grows as the square of the step)."""


def should_resync(
    ess: Array, below: Array | float, /, *, steps_since: Array | int = 0, sync_every: Array | int = 0
) -> Array:
    """Tell whether the sampler must be synced before it generates again.

    Parameters
    ----------
    ess : array or float
        ESS of the lag ratio at the new weights, a share in [1/n, 1]. NaN (no tokens, or broken log-probs)
        is no evidence that the batch is still usable, so it syncs.
    below : array or float
        The threshold; 0 switches the rule off.
    steps_since : array or int
        Updates since the last sync, the one just made included.
    sync_every : array or int
        The scheduled period; 0 means no schedule.

    Returns
    -------
    array or bool
        True where either the ESS rule or the schedule fires.

    Raises
    ------
    ValueError
        For a plain `ess` that is no number, a `below` outside [0, 1], steps that are no counts; arrays are
        taken as they are.
    """
    if not is_array(ess):
        refuse_number("ess", ess)
    if not is_array(below):
        refuse_share("below", below, what="an ESS share", do="0 switches the rule off")
    for name, steps in (("steps_since", steps_since), ("sync_every", sync_every)):
        if not is_array(steps):
            refuse_count(name, steps, least=0)
    # "not >=" in place of "<" lets NaN fire; "^ True" is the negation that numbers and arrays share
    fires = (below > 0) & ((ess >= below) ^ True)
    due = (sync_every > 0) & (steps_since >= sync_every)
    return fires | due
