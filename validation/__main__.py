"""``python -m validation``: from the checkout, the canonical way to run lagfloor."""

import sys

from validation.cli import main

sys.exit(main())
