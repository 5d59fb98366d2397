"""The report: verdicts and figures as one self-contained page, and the README's claims table."""
