"""`python -m completion_ls` is `completion-ls`."""

import sys

if not sys.flags.safe_path:
    # The folder where we run, which may be anybody's: a random.py there is not the library's.
    del sys.path[0]

from completion_ls.cli.main import main

sys.exit(main())
