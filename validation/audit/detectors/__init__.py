"""One file a kind of fault; each takes the evidence and returns findings, and marks the tokens it accounts for."""
