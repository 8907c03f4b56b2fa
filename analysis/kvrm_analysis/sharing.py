"""What prefix sharing found, from the records of the requests."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def hit_share(requests: pa.Table) -> float | None:
    """Share of the prompt tokens of admitted requests that were cached at their first admission.

    ``requests``: columns of requests.parquet. None when nobody was admitted. A trace's ceiling, with a cache without
    end, is what ``kvrm trace inspect`` prints.
    """
    admitted = requests.filter(pc.is_valid(requests["hit_tokens"]))
    if admitted.num_rows == 0:
        return None
    return float(pc.sum(admitted["hit_tokens"]).as_py() / pc.sum(admitted["prompt_tokens"]).as_py())
