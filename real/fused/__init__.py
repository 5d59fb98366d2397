"""The corrected loss on large vocabularies without a tensor of tokens x vocabulary.

`columns` is what the engine hands over (top-K and tail), `loss` the chunked loss on K+1 columns and the
forward-only pass at the same columns, `rule` binds a correction of theory/ to it, `stale` caches the pass
at the sampler's weights, `row` does the same on full rows: for vocabularies where they fit, and as the
loss's oracle.
"""
