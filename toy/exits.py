"""The numbers of `toy.settings.Exit`: features, logits and output embeddings chosen, not drawn.

Shape suffixes: see `toy.task`; the last memory states are those after the wrong token, after the exit, and
the beginning.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

from toy.settings import Exit
from toy.task import Task

EXIT_SCORE = -10.0
"""Score of an exit: no response that takes it succeeds"""
OWN_LENGTH = 0.5
"""Length of the exit's embedding in a direction of its own, in lengths of the others"""


def exit_task(env: Exit) -> Task:
    """Numbers of the environment, float64."""
    rng = np.random.default_rng(env.seed)
    C, T, D, V = env.prompts, env.length, env.embedding, env.vocabulary
    U, wrong, out = V + 1, V - 2, V - 1
    own = rng.normal(size=(C, T, U, D))
    own[..., 0] = 0.0
    own /= np.linalg.norm(own, axis=-1, keepdims=True)
    shared = np.eye(D)[0]
    features = env.shared * shared + math.sqrt(1 - env.shared**2) * own
    features[:, :, out] = shared
    p = np.zeros((C, T, U, V))
    p[..., wrong], p[..., out] = env.wrong, env.leave
    p[:, :, out, out] = env.stay
    ordinary = np.exp(env.spread * rng.normal(size=(C, T, U, env.words)))
    left = 1 - p.sum(-1, keepdims=True)
    p[..., : env.words] = left * ordinary / ordinary.sum(-1, keepdims=True)
    embedding = np.eye(V)
    embedding[out] = -env.opposition * embedding[wrong] + OWN_LENGTH * embedding[out]
    score = np.zeros((C, T, U, V))
    score[..., wrong], score[..., out] = -1.0, EXIT_SCORE
    allowed = -float(binom.median(T, env.wrong))
    return Task(features, np.log(p), embedding.T, score_CTUV=score, threshold_C=np.full(C, allowed))
