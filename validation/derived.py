"""Numbers computed from stored runs and kept beside them, so that a second check computes nothing again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from validation.atomic import write_file

FOLDER = "derived"


def derived(
    root: Path, what: str, /, *inputs: str, compute: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return columns of one length, from disk where the same thing was computed before.

    Parameters
    ----------
    root : Path
        Folder of the engine's runs.
    what : str
        Name of the quantity.
    *inputs : str
        All it depends on: fingerprints of runs, code digest, settings.
    compute : callable
        Makes the columns.

    Raises
    ------
    ValueError
        If the file is there and is no table.
    """
    key = hashlib.sha256("\n".join((what, *inputs)).encode()).hexdigest()[:16]
    path = root / FOLDER / f"{what}-{key}.parquet"
    if not path.exists():
        columns = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, lambda temporary: pq.write_table(pa.table(dict(columns)), temporary))
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: {str(error).splitlines()[0]}; delete it, it will be computed again"
        ) from None
    return {name: table.column(name).to_numpy() for name in table.column_names}
