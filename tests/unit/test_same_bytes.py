"""The same history gives the same bytes in the store, whatever order Python's hashing gives to sets."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_leaders_writes_do_not_depend_on_the_hash_seed() -> None:
    outputs = []
    for seed in ("0", "1", "2", "3"):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.unit.same_history"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr.decode()
        outputs.append(ended.stdout)
    assert b"\n3000\n" in outputs[0], "the limit has moved"
    assert outputs.count(outputs[0]) == len(outputs)
