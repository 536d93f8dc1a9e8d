"""Says of a failed Spark job whether another try can help, and shows its error in one line."""

from __future__ import annotations

import re

from aiokcc.credentials import hide_secrets

__all__ = ["first_line", "is_permanent"]


def is_permanent(error: Exception) -> bool:
    """Return whether a job fails in the same way each time: the function is wrong, or its plan."""
    # By name: classic Spark and Spark Connect have classes of their own.
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("pyspark")}
    return isinstance(error, TypeError | NameError | AttributeError) or "AnalysisException" in kinds


def first_line(error: Exception) -> str:
    """Return the error without its stack: the first line, and the last cause that Java or Python names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    causes = [
        line for line in lines[1:] if line.startswith("Caused by:") or re.match(r"[\w.]+(Error|Exception): ", line)
    ]
    shown = [f"{type(error).__name__}:", lines[0][:400], *(line[:400] for line in causes[-1:])]
    return hide_secrets(" ".join(shown))  # an address in it may hold a password
