"""Start cases of `cases.py` or `own_cases.py` as several processes, and wait for them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

WORKERS = Path(__file__).parent


def environment(flags):
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def run(case, folder, processes, devices, limit=6, patience=100, program="cases.py", ends=None):
    """Run a case as several processes, all of which must end well, or with the codes `ends`."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    env = environment(
        f"--xla_cpu_collective_timeout_seconds={limit} "
        f"--xla_force_host_platform_device_count={devices}"
    )
    running = []
    logs = [folder / f"log-{number}" for number in range(processes)]
    for number, log in enumerate(logs):
        arguments = [case, str(folder), str(number), str(processes), str(port)]
        with log.open("w") as out:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-W", "error", str(WORKERS / program), *arguments],
                    env=env, stdout=out, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
    end = time.monotonic() + patience
    try:
        codes = [process.wait(max(0.1, end - time.monotonic())) for process in running]
    except subprocess.TimeoutExpired:
        codes = None
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert codes == (ends or [0] * processes), "\n".join(log.read_text() for log in logs)


def told(folder, processes):
    """Return what each process wrote down."""
    return [json.loads((folder / f"told-{number}.json").read_text()) for number in range(processes)]
