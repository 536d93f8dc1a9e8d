"""``python -m aiokcc`` is ``aiokcc``."""

from __future__ import annotations

from aiokcc.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
