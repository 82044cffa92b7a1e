"""What the contracts of several adapters need."""

from __future__ import annotations

from tests.s3front import moto_port, s3

__all__ = ["moto_port", "s3"]
