"""``python -m vcr``: the command."""

import sys

from vcr._command import main

sys.exit(main())
