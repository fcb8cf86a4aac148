"""`python -m api.gateway`."""

import sys

from api.gateway.main import main

sys.exit(main())
