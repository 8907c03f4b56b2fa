"""The keys that a search varies: the axes of a study, as coordinates from 0 to 1 and back.

A stretch of numbers (``{ range = [1, 8] }``, without ``step`` or ``points``) is continuous, or its whole numbers; a
list or a range with points is its values in their order; words are in no order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvrm_analysis.studies.axes import Axis, Dimension, axis_entries, read_dimension
from kvrm_analysis.studies.names import check_names
from kvrm_analysis.studies.study_file import StudyFile
from kvrm_sim.errors import ConfigError
from kvrm_sim.plugin_registry import using

#: A neighbour in a stretch lies this share of it away.
STEP = 0.05


@dataclass(frozen=True)
class Space:
    """What is varied, each key once."""

    dimensions: tuple[Axis | Dimension, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order of the study."""
        return tuple(of.key for of in self.dimensions)

    def neighbours(self, settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(key, changes) of each cell that differs from these settings in one key by one step; of words, all others."""
        for of in self.dimensions:
            for value in _beside(of, settings[of.key]):
                yield of.key, {of.key: value}


def ordered(axis: Axis) -> bool:
    """Its values are numbers that ascend: a neighbour in the list is a neighbour."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis.values)
    return numbers and list(axis.values) == sorted(axis.values)


def share_of(of: Dimension, value: float) -> float:
    """Where in the stretch a value lies, 0 to 1."""
    if of.log:
        return math.log(value / of.low) / math.log(of.high / of.low)
    return (value - of.low) / (of.high - of.low)


def _beside(of: Axis | Dimension, value: Any) -> list[Any]:
    if isinstance(of, Axis):
        at = of.values.index(value)
        if not ordered(of):
            return [other for other in of.values if other != value]
        return [of.values[other] for other in (at - 1, at + 1) if 0 <= other < len(of.values)]
    share = share_of(of, value)
    found = [of.at(min(1.0, max(0.0, share + step))) for step in (-STEP, STEP)]
    return [other for other in dict.fromkeys(found) if other != value]


def read_space(file: StudyFile, command: str) -> Space:
    """The axes of a study as the space of a search: [axes] and [sample.axes]. Raises ConfigError.

    ``command``: who asks, for the message where there is nothing to search.
    """
    given = file.sections
    if "variants" in given:
        raise ConfigError(f"variants: `kvrm {command}` searches [axes]; variants are of `kvrm sweep`", "variants")
    sample = given.get("sample", {})
    found: list[Axis | Dimension] = []
    with using([file.path(name) for name in file.plugins]):
        for where, axes in (("axes", given.get("axes", {})), ("sample.axes", dict(sample).get("axes", {}))):
            if not isinstance(axes, Mapping):
                raise ConfigError(f"{where} = {axes!r}: should be a table of axes, [{where}]", where, axes)
            read = [read_dimension(name, value, where) for name, value in axis_entries(axes).items()]
            for of in read:
                check_names(f"{where}.", of, file.folder)
            found += read
    keys = [of.key for of in found]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"axes.{key}: sample.axes has it too; it can vary in one of them", key)
    varied = tuple(of for of in found if not isinstance(of, Axis) or len(of.values) > 1)
    if not varied:
        raise ConfigError(
            "axes: missing: nothing to search; name keys in [axes], e.g. pool_blocks = { range = [1000, 8000] }", "axes"
        )
    return Space(tuple(found))
