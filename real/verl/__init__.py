"""verl: the correction core in its registries, and a trainer whose weight sync fires on the lag.

`plugin` is what verl loads: policy `losses` and `advantages` under our names; `trainer` registers the
trainer mode ``lag_gated``; `actor_loss` is the loss that trainer installs, centred or not; `topk` keeps the
sampler's row; `launch` is the articles' experiment. Made for verl 0.9.1; `python -m validation doctor` says
whether it fits.
"""
