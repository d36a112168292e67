"""A user's script whose DataLoader workers look rows up; starts them as its argument says.

Run by test_state.py in a process of its own: workers that are spawned import this file anew, and a
fork is warned of where another test has imported JAX.
"""

from __future__ import annotations

import sys

import torch

import shardcore as sc
import shardcore.torch as st


class Lookups(torch.utils.data.Dataset):
    """Rows 0 to 3 of a module, each with the number of threads of the worker that read it."""

    def __init__(self, module: st.Embedding) -> None:
        self.module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return self.module(torch.tensor([at])).detach()[0], sc.get_num_threads()


def main(context: str) -> None:
    weight = torch.arange(8, dtype=torch.float32).reshape(4, 2)
    module = st.Embedding.from_pretrained(weight)
    # The pool of this process is awake before it forks.
    module(torch.arange(4))
    loader = torch.utils.data.DataLoader(
        Lookups(module), batch_size=2, num_workers=2, multiprocessing_context=context
    )
    for rows, threads in loader:
        print(rows.tolist(), threads.tolist())


if __name__ == "__main__":
    main(sys.argv[1])
