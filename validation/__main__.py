"""``python -m validation``: the canonical command, run from the checkout."""

import sys

from validation.cli import main

if __name__ == "__main__":
    sys.exit(main())
