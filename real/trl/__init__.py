"""TRL: the correction core as a GRPOTrainer, and a sampler pushed new weights when the lag asks for it.

`trainer.LagGRPOTrainer` is the whole of it; `gate.HoldSampler` only holds the sampler of a stock trainer;
`countdown` is a run. (Where trl is not installed, pyright takes this package for it: hence the ignores.) Made
for trl 1.16; `python -m validation doctor` says whether the installed one still fits.
"""
