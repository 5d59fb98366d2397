"""Exact mean bias of the toy's update under a pipeline fault: the vectors of the theory, summed over states.

Memory 'first' with raw rewards: at the beginning the advantage of a token is its reward, afterwards it is
that of the first token, whatever is drawn. All in float64 NumPy, by enumeration of states, in the
coordinates (D, V) of the trained weights. Shape suffixes: see `toy.task`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory import infrastructure as law
from theory.fisher import gradient, score_mean
from toy.task import Task
from toy.toggles import Infrastructure

Vector = Callable[[tuple[int, int, int], np.ndarray], np.ndarray]
"""Mean logit gradient (V) at a state, given the advantage (V) of each token there"""


def _over_states(task: Task, first_CV: np.ndarray, at: Vector) -> np.ndarray:
    """Sum a vector over states and pull it back to the weights; `first_CV`: how often each first token."""
    total = np.zeros(task.weights_shape)
    C, T, U, V = task.logits_CTUV.shape
    for c in range(C):
        places = [((c, 0, U - 1), 1.0, task.reward_CV[c])]
        places += [
            ((c, t, u), first_CV[c, u], np.full(V, task.reward_CV[c, u]))
            for t in range(1, T)
            for u in range(V)
        ]
        for state, weight, advantage in places:
            vector = at(state, advantage)
            total += weight * np.outer(task.features_CTUD[state], task.projector_VV @ vector)
    return total / C


def exact_gradient(task: Task, p_CTUV: np.ndarray) -> np.ndarray:
    """Policy gradient (D, V) of the expected reward, no fault and no mismatch."""
    first = p_CTUV[:, 0, -1]
    return _over_states(task, first, lambda s, advantage: gradient(p_CTUV[s], advantage))


def top_p(task: Task, p_CTUV: np.ndarray, top_p: float, *, corrected: bool = False) -> np.ndarray:
    """Bias (D, V) of truncated sampling; `corrected`: by the ratio to the distribution really drawn from."""
    keep = law.nucleus(p_CTUV, top_p)
    drawn = np.where(keep, p_CTUV, 0.0)
    drawn /= drawn.sum(-1, keepdims=True)

    def at(state: tuple[int, int, int], advantage: np.ndarray) -> np.ndarray:
        bias = law.top_p_bias(p_CTUV[state], advantage, keep[state])
        return bias.corrected if corrected else bias.uncorrected

    return _over_states(task, drawn[:, 0, -1], at)


def retokenised(task: Task, p_CTUV: np.ndarray, pair: tuple[int, int, int]) -> np.ndarray:
    """Bias (D, V) of training on ab where a, b was drawn, for responses of two tokens.

    Raises
    ------
    ValueError
        For longer responses: what follows the pair moves to other states.
    """
    C, T, _, V = task.logits_CTUV.shape
    if T != 2:
        raise ValueError(f"the vectors of a retokenised pair are those of 2 tokens, got length {T}; use 2")
    a, b, both = pair

    def at(state: tuple[int, int, int], advantage: np.ndarray) -> np.ndarray:
        c, t, u = state
        if t and u != a:
            return np.zeros(V)
        found = law.retokenised(
            p_CTUV[c, 0, -1], p_CTUV[c, 1, a], a=a, b=b, ab=both, advantage=task.reward_CV[c, a]
        )
        return found.second if t else found.first

    # the second vector counts how often a was drawn already
    return _over_states(task, np.ones((C, V)), at)


def _some(share_C: np.ndarray, samples: int) -> np.ndarray:
    """Probability of each prompt that any of its responses is there, of which each is with a given share."""
    return 1 - (1 - np.minimum(share_C, 1)) ** samples


def filtered(
    task: Task, mu_CTUV: np.ndarray, p_CTUV: np.ndarray, keep_wrong: float, *, samples: int
) -> np.ndarray:
    """Bias (D, V) of dropping wrong responses, under a sampler mu: prompts are scaled by their success.

    A prompt of whose `samples` responses none is kept teaches nothing in that batch.
    """
    right = (task.reward_CV > 0).astype(float)
    kept_CV = mu_CTUV[:, 0, -1] * np.where(right > 0, 1.0, keep_wrong)
    some_C = _some(kept_CV.sum(-1), samples)
    kept_CV /= kept_CV.sum(-1, keepdims=True)

    def at(state: tuple[int, int, int], advantage: np.ndarray) -> np.ndarray:
        mu, p, c = mu_CTUV[state], p_CTUV[state], state[0]
        if state[1]:
            return some_C[c] * score_mean(mu * advantage, p)
        return some_C[c] * law.reward_filter(mu, p, right[c], keep_wrong=keep_wrong).gradient

    return _over_states(task, kept_CV, at) - exact_gradient(task, p_CTUV)


def deferred(
    task: Task, before_CTUV: np.ndarray | None, p_CTUV: np.ndarray, defer_from: int, *, samples: int
) -> np.ndarray:
    """Bias (D, V) of long responses that arrive a step late; `before_CTUV` None: in the first batch."""
    long = np.arange(task.projector_VV.shape[0]) >= defer_from
    everything = np.ones_like(long)
    if before_CTUV is None:
        some_C = _some(np.where(long, 0.0, p_CTUV[:, 0, -1]).sum(-1), samples)

        def first_batch(state: tuple[int, int, int], advantage: np.ndarray) -> np.ndarray:
            g = gradient(p_CTUV[state], advantage)
            return some_C[state[0]] * (g + law.first_batch_bias(p_CTUV[state], advantage, long)) - g

        # later tokens have no contrast and no mismatch: no bias there
        return _over_states(task, np.zeros_like(task.reward_CV), first_batch)

    first, first_before = p_CTUV[:, 0, -1], before_CTUV[:, 0, -1]
    # the batch is averaged over the responses in it, and their number changes with the share of long ones
    count_C = 1 + np.where(long, first_before - first, 0.0).sum(-1)

    def at(state: tuple[int, int, int], advantage: np.ndarray) -> np.ndarray:
        late = long if state[1] == 0 else everything
        bias = law.deferred_bias(before_CTUV[state], p_CTUV[state], advantage, late)
        g = gradient(p_CTUV[state], advantage)
        return (g + bias) / count_C[state[0]] - g

    return _over_states(task, np.where(long, first_before, 0.0), at)


def exact_bias(
    task: Task, chosen: Infrastructure, p_CTUV: np.ndarray, before_CTUV: np.ndarray | None, *, samples: int
) -> np.ndarray:
    """Bias (D, V) of the uncorrected update on-policy, for the one fault that is on.

    Parameters
    ----------
    task : Task
        Of a `Sequence` with memory 'first'.
    chosen : Infrastructure
        One of its toggles on.
    p_CTUV : array
        Policy before the update, which is also the sampler's.
    before_CTUV : array or None
        Policy one update earlier; None before the first.
    samples : int
        Responses per prompt: of few, none may be left.

    Raises
    ------
    ValueError
        If none or several are on: their biases do not add.
    """
    defaults = Infrastructure()
    on = [
        name
        for name in ("top_p", "retokenise", "keep_wrong", "defer_from")
        if getattr(chosen, name) != getattr(defaults, name)
    ]
    if len(on) != 1:
        raise ValueError(f"an exact bias needs one fault that is on, got {', '.join(on) or 'none'}")
    if chosen.retokenise is not None:
        return retokenised(task, p_CTUV, chosen.retokenise)
    if chosen.defer_from is not None:
        return deferred(task, before_CTUV, p_CTUV, chosen.defer_from, samples=samples)
    if chosen.keep_wrong < 1:
        return filtered(task, p_CTUV, p_CTUV, chosen.keep_wrong, samples=samples)
    return top_p(task, p_CTUV, chosen.top_p)
