"""Reads how much memory a platform has."""

from pathlib import Path

from tests.platform import Platform


def memory_mb(platform: Platform) -> float:
    status = Path(f"/proc/{platform.process.pid}/status").read_text()
    return next(
        int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")
    )
