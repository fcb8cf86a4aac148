"""`python -m api.cli`: the command line without its console script."""

import sys

from api.cli.main import main

sys.exit(main())
