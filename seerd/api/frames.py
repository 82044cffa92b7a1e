"""The tables of `seerd export` as data frames of pandas.

The one rule: columns and rows are those of `seerd/export/rows.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seerd.errors import UsageError
from seerd.export.rows import Rows
from seerd.extras import installing

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Rows) -> pd.DataFrame:
    """Return the table; what there is none of is NaN. Raises `UsageError` without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        told = f"data frames need one more package: {installing('notebook')}"
        raise UsageError(told) from error
    return pd.DataFrame(rows.columns(), columns=list(rows.names))
