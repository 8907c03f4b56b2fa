"""Any CSV or JSONL whose columns are named by the caller, or already have our names.

The unit is never guessed: it is stated by the caller, or by the column's name (``arrival_ms``), or the values are
dates. What the prompts of conversations are is stated too; unless it is, they hold all that was said before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvrm_traces.errors import TraceError
from kvrm_traces.readers.layout import NS, Layout, Record, Unit, listed
from kvrm_traces.schema import OPTIONAL

#: Our names, as a mapping of columns uses them.
NAMES = ("arrival", "prompt_tokens", "output_tokens", *OPTIONAL)

_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d([ T]|$)")


def generic_layout(path: object, first: Record, columns: Mapping[str, str] | None) -> Layout:
    """The layout of a file by its mapping (ours -> theirs); columns that already have our names need none.

    Raises TraceError for an unknown name of ours, a column that the file lacks, or missing lengths.
    """
    fields: dict[str, str] = {}
    unit: Unit | None = None
    for stated in NS:
        if f"arrival_{stated}" in first:
            fields["arrival"], unit = f"arrival_{stated}", stated
    fields |= {name: name for name in NAMES if name in first}
    for ours, theirs in (columns or {}).items():
        if ours not in NAMES:
            raise TraceError(f"{path}: column mapping {ours}={theirs}: no field {ours!r}; ours are {', '.join(NAMES)}")
        if theirs not in first:
            raise TraceError(f"{path}: column mapping {ours}={theirs}: the file has {listed(first)}")
        if ours == "arrival" and theirs != fields.get("arrival"):
            unit = None
        fields[ours] = theirs
    missing = [name for name in ("prompt_tokens", "output_tokens") if name not in fields]
    if missing:
        raise TraceError(
            f"{path}: which column is {' and which '.join(missing)}? It has {listed(first)}; "
            f"map it, e.g. {missing[0]}={next(iter(first))}"
        )
    if "arrival" in fields and unit is None and _DATE.match(str(first[fields["arrival"]])):
        unit = "datetime"
    return Layout(fields=fields, unit=unit)
