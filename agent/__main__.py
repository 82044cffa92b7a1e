"""`python -I agent.pyz ...` and `python -m agent ...`."""

import sys

from agent.serve import main

sys.exit(main())
