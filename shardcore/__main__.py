"""``python -m shardcore``: the console command, where its script is not on the path."""

import sys

from shardcore.cli import main

sys.exit(main())
