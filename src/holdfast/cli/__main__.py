"""`python -m holdfast.cli`: the same as `holdfast`, for the demo's workers and where the script is not on the path."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
