"""What is true: identities, laws and the correction core, on NumPy, torch and JAX through the array API.

Imports no framework. Letters mean the same everywhere: mu, the engine's distribution as really sampled;
pi_s, the trainer at the sampler's weights; pi, the trainer now. ``w = pi/pi_s`` is the lag ratio.
"""
