"""Tables as files, each whole or not at all."""

from __future__ import annotations

import csv as standard
from contextlib import suppress
from pathlib import Path

from seerd.export.rows import Cell, Rows
from seerd.telling.harmless import printable

FORMULA = tuple("=+-@")
"""How a cell begins that a spreadsheet computes
(owasp.org/www-community/attacks/CSV_Injection).
"""


def csv(table: Rows, path: Path) -> None:
    """Write a table as CSV (RFC 4180), with formulas (see `FORMULA`) as text. Raises `OSError`."""
    part = _part(path)
    with part.open("w", newline="", encoding="utf-8") as file:
        rows = (map(_text_of, row) for row in (table.names, *table.rows))
        standard.writer(file).writerows(rows)
    part.replace(path)


def parquet(table: Rows, path: Path) -> None:
    """Write a table as Parquet; a column of several types is text. Raises `OSError`."""
    import pyarrow as pa
    from pyarrow import parquet as written

    columns = table.columns()
    for name, values in columns.items():
        kinds = {type(value) for value in values} - {type(None)}
        if len(kinds) > 1 and kinds != {int, float}:
            columns[name] = [None if value is None else str(value) for value in values]
    part = _part(path)
    written.write_table(pa.table(columns), part)
    part.replace(path)


def run_of_csv(path: Path) -> str:
    """Return the run that a table is of; empty if it does not say. Raises `OSError`."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return next(standard.DictReader(file), {}).get("run") or ""


def run_of_parquet(path: Path) -> str:
    """Return the same of a Parquet file. Raises `OSError`."""
    import pyarrow as pa
    from pyarrow import parquet as written

    try:
        file = written.ParquetFile(path)
    except pa.ArrowInvalid:  # it is no Parquet file
        return ""
    if "run" not in file.schema_arrow.names or not file.metadata.num_rows:
        return ""
    return str(next(file.iter_batches(1, columns=["run"])).column(0)[0])


def _text_of(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    with suppress(ValueError):  # a number is no formula
        float(cell)
        return cell
    return "'" * cell.startswith(FORMULA) + printable(cell)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
