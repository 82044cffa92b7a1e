"""Tables as files.

The one rule: a file is there whole or not at all.
"""

from __future__ import annotations

import csv as standard
from pathlib import Path

from seerd.export.rows import Rows


def csv(table: Rows, path: Path) -> None:
    """Write a table as CSV (RFC 4180), UTF-8; what there is none of is empty. Raises `OSError`."""
    part = _part(path)
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = standard.writer(file)
        writer.writerow(table.names)
        writer.writerows(table.rows)
    part.replace(path)


def parquet(table: Rows, path: Path) -> None:
    """Write a table as Parquet; a column of which the values are of several types is text. Raises
    `OSError`.
    """
    import pyarrow as pa
    from pyarrow import parquet as written

    columns = table.columns()
    kinds = {
        name: {type(value) for value in values} - {type(None)} for name, values in columns.items()
    }
    arrays = {
        name: values
        if len(kinds[name]) < 2 or kinds[name] == {int, float}
        else [None if value is None else str(value) for value in values]
        for name, values in columns.items()
    }
    part = _part(path)
    written.write_table(pa.table(arrays), part)
    part.replace(path)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
