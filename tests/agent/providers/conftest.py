"""The stub of providers is importable from the tests beside it, which are no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
