"""Ask the installed TRL if it still has what we override; prints one JSON object (`validation.doctor`)."""

from __future__ import annotations

import inspect
import json
import warnings

OVERRIDDEN = (
    "_generate_single_turn",
    "_generate_and_score_completions",
    "_calculate_rewards",
    "_compute_loss",
)
"""Private methods of GRPOTrainer"""
USED = ("_last_loaded_step", "_buffered_inputs", "_metrics", "num_items_in_batch", "sampling_per_token_logps")
"""Names its source must still mention"""


def main() -> dict[str, list[str]]:
    """Names that are gone, and those our trainer overrides."""
    from trl import GRPOTrainer  # pyright: ignore[reportAttributeAccessIssue]

    from real.trl.trainer import LagGRPOTrainer

    text = inspect.getsource(GRPOTrainer)
    gone = [n for n in OVERRIDDEN if not hasattr(GRPOTrainer, n)] + [n for n in USED if n not in text]
    return {"gone": gone, "overridden": [n for n in OVERRIDDEN if n in vars(LagGRPOTrainer)]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main()))
