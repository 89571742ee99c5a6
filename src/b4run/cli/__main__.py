"""`python -m b4run.cli`."""

import sys

from b4run.cli.main import main

sys.exit(main())
