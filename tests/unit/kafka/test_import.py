"""The error for a person who has installed aiokcc without the package that reads Kafka."""

from __future__ import annotations

import subprocess
import sys


def test_an_import_without_aiokafka_names_the_extra() -> None:
    program = "import sys; sys.modules['aiokafka'] = None; import aiokcc.kafka"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: aiokcc.kafka reads Kafka through aiokafka: pip install 'aiokcc[kafka]'"
    )
