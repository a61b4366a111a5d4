"""``python -m ds41``: the same as the ``ds41`` command."""

import sys

from ds41.cli import main

sys.exit(main())
