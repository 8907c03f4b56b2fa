"""The folder of a search: made, continued, or refused."""

from __future__ import annotations

from pathlib import Path

from kvrm_sim.errors import InputError


def prepared_folder(folder: Path, journal: str, *, resume: bool) -> Path:
    """The folder, made where it was missing. ``resume`` false forgets its journal.

    Raises InputError for a folder that holds other things than such a search.
    """
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"{folder} is a file, not a folder of a search: choose another --out")
        if any(folder.iterdir()) and not (folder / journal).is_file():
            raise InputError(f"{folder} holds no {journal}, so it is no folder of such a search: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            (folder / journal).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder
