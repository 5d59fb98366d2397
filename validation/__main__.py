"""``python -m validation``: the canonical command, run from the checkout."""

import sys

from real.interrupt import install

install()  # before the imports that Ctrl-C must not cut

from validation.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
