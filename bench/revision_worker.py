"""Measures our side of cases when told to, for `revisions`: a script, so that no package comes too.

Its argument is a `Plan` as JSON. It prints the name of a case and waits: for every line "block" on
its standard input it prints the seconds of a block's samples; any other takes it to the next case.
"""

from __future__ import annotations

import gc
import json
import sys

from shardcore_bench.cases import GROUPS
from shardcore_bench.measure import SIZES, Plan
from shardcore_bench.timing import block, calls_per_sample

import shardcore as sc


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    sc.set_num_threads(plan.threads)
    for group in plan.groups:
        for case in GROUPS[group](SIZES[plan.size], plan.threads):
            run = case.ours().run
            calls = calls_per_sample(run)
            print(json.dumps({"group": group, "case": case.name}), flush=True)
            gc.collect()
            gc.disable()
            while sys.stdin.readline() == "block\n":
                print(json.dumps(block(run, calls)), flush=True)
            gc.enable()
            del run, case


if __name__ == "__main__":
    main()
