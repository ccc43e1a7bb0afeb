"""`python -m completion_ls` is `completion-ls`."""

import sys

from completion_ls.cli.main import main

sys.exit(main())
