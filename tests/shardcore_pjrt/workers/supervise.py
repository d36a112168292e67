"""Run a program as several processes until all end well: ``supervise.py PROCESSES PROGRAM ...``.

The program is given its own arguments, then its number, the number of processes, and a port. If
one process fails, all are ended and started again: the program goes on from its last checkpoint.
"""

import os
import socket
import subprocess
import sys
import time

ATTEMPTS = 5
GRACE = 3.0
"""Seconds that the others have to print their errors, before they are killed."""

FLAGS = "--xla_cpu_collective_timeout_seconds=10"


def free_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def attempt(processes, command):
    """Return whether all processes ended well; when this returns, all have ended."""
    of_all = [str(processes), str(free_port())]
    env = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"}
    running = [
        subprocess.Popen([sys.executable, *command, str(number), *of_all], env=env)
        for number in range(processes)
    ]
    print("started", *(process.pid for process in running), flush=True)
    failed_at = None
    try:
        while True:
            codes = [process.poll() for process in running]
            if failed_at is None and any(codes):
                failed_at = time.monotonic()
            late = failed_at is not None and time.monotonic() > failed_at + GRACE
            if late or None not in codes:
                print("ended", *codes, flush=True)
                return not any(codes) and not late
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()  # also ends one that is stopped
            process.wait()


def main(processes, *command):
    return 0 if any(attempt(int(processes), command) for _ in range(ATTEMPTS)) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
