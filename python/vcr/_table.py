"""Tables in Arrow's memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from vcr import _vcr


class Table:
    """Columns of equal length: whole numbers, numbers (none where unknown) and texts.

    Anything that reads Arrow's C stream interface takes it without a copy, such as
    ``polars.DataFrame(table)``, ``pyarrow.table(table)`` or DuckDB.
    """

    def __init__(self, table: _vcr.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self._table.num_rows

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._table.num_rows

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self._table.column_names

    def __getitem__(self, name: str) -> list[Any]:
        column = self._table.column(name)
        if column is None:
            raise KeyError(f"unknown column `{name}`: expected {', '.join(self.column_names)}")
        return column

    def to_pyarrow(self) -> pyarrow.Table:
        """As a table of pyarrow, which is not copied."""
        return _imported("pyarrow", "pyarrow").table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """As a data frame of pandas."""
        _imported("pandas", "pandas pyarrow")
        return self.to_pyarrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """As a data frame of Polars."""
        return _imported("polars", "polars").DataFrame(self)

    def write(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes a .csv, .json or .parquet file, with the bytes that the command writes."""
        self._table.write(path, force=force)

    def __repr__(self) -> str:
        return f"<vcr.Table of {self.num_rows} rows: {', '.join(self.column_names)}>"

    def _repr_html_(self) -> str:
        shown = min(self.num_rows, 20)
        columns = [self[name][:shown] for name in self.column_names]
        rest = f"<p>{self.num_rows - shown} more rows</p>" if shown < self.num_rows else ""
        return html_table(self.column_names, zip(*columns)) + rest


def html_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table for a notebook."""

    def text(value: object) -> str:
        if value is None:
            return ""
        return escape(f"{value:.6g}" if isinstance(value, float) else str(value))

    titles = "".join(f"<th>{text(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{text(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _imported(module: str, packages: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install {packages}") from error
