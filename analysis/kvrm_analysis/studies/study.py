"""A sweep's cells: the base configuration with every combination of axes, variants and samples, and repeats of each.

A *configuration* is what the axes choose; its repeats differ in their seed alone. Cells are in the order of the file:
the axis that is named first changes last, repeats change first. How many there are is known, and refused when it is
too many, before one of them is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrm_analysis.studies.axes import Axis, Sample, axis_entries, read_axis, read_sample
from kvrm_analysis.studies.names import check_name, check_names
from kvrm_analysis.studies.settings import checked, flattened
from kvrm_analysis.studies.study_file import OF_OTHERS, StudyFile, needs_trace, parsed_study
from kvrm_sim.errors import ConfigError
from kvrm_sim.plugin_registry import using

#: More cells have to be asked for, with `max_cells`.
USUAL_MOST_CELLS = 100_000
#: The rows of a study are in memory when its table is written.
MOST_CELLS = 5_000_000


@dataclass(frozen=True)
class Cell:
    """One cell: its place in the table, its configuration, which of its repeats it is, and what it sets."""

    at: int
    configuration: int
    repeat: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """The cells of a sweep, checked but not made yet. Each variant and each point of the sample sets several keys."""

    file: StudyFile
    axes: tuple[Axis, ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ()
    sample: Sample | None = None
    repeats: int = 1
    #: Of the interval that repeats give.
    confidence: float = 0.95
    max_cells: int = USUAL_MOST_CELLS

    @property
    def size(self) -> int:
        """Cells before the constraints."""
        return self.configurations * self.repeats

    @property
    def configurations(self) -> int:
        """Configurations before the constraints."""
        drawn = 1 if self.sample is None else self.sample.points
        return math.prod(len(axis.values) for axis in self.axes) * max(1, len(self.variants)) * drawn

    @property
    def varied(self) -> tuple[str, ...]:
        """The keys in which cells may differ, in the order of the file; the seed among them where there are repeats."""
        drawn = () if self.sample is None else tuple(of.key for of in self.sample.dimensions)
        listed = dict.fromkeys(key for variant in self.variants for key in variant)
        found = (*(axis.key for axis in self.axes), *listed, *drawn)
        return found if self.repeats == 1 else (*found, "seed")

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that a cell sets: the configuration columns of the table. First those that vary."""
        return tuple(dict.fromkeys((*self.varied, *self.file.base)))

    def cells(self) -> list[Cell]:
        """Every cell that satisfies the constraints. Raises ConfigError when none does, or one cannot be told."""
        return self.chosen()[0]

    def chosen(self) -> tuple[list[Cell], dict[str, int]]:
        """Every cell that satisfies the constraints, and how many each constraint excludes (a cell is counted by the
        first that it misses). Raises ConfigError when no cell is left, or a constraint cannot be told.
        """
        kept: list[dict[str, Any]] = []
        excluded = {constraint.text: 0 for constraint in self.file.constraints}
        with using([self.file.path(name) for name in self.file.plugins]):
            for settings in self._configurations():
                missed = self.file.missed(settings)
                if missed is None:
                    kept.append(settings)
                else:
                    excluded[missed.text] += self.repeats
        if not kept:
            by = ", ".join(f"{count:,} by {text!r}" for text, count in excluded.items())
            raise ConfigError(f"constraints: each of the {self.size:,} cells is excluded: {by}", "constraints")
        return self._cells(kept), excluded

    def _cells(self, kept: Sequence[dict[str, Any]]) -> list[Cell]:
        found: list[Cell] = []
        for number, settings in enumerate(kept):
            for repeat in range(self.repeats):
                own = settings if self.repeats == 1 else {**settings, "seed": settings["seed"] + repeat}
                found.append(Cell(len(found), number, repeat, own))
        return found

    def _configurations(self) -> Iterator[dict[str, Any]]:
        grid = [[{axis.key: value} for value in axis.values] for axis in self.axes]
        variants = [list(self.variants)] if self.variants else []
        drawn = [] if self.sample is None else [self.sample.settings()]
        for chosen in itertools.product(*grid, *variants, *drawn):
            settings = dict(self.file.base)
            for part in chosen:
                settings |= part
            yield settings


def load_study(source: str | Path | Mapping[str, Any]) -> Study:
    """A sweep from a TOML file, or from the same as nested values. Everything that can be known of it before any work
    is checked: keys, values, empty axes, the number of cells. Raises ConfigError.
    """
    return parsed_study(source, sweep_of)


def sweep_of(file: StudyFile) -> Study:
    """The sweep that a study describes. Raises ConfigError."""
    given = file.sections
    with using([file.path(name) for name in file.plugins]):
        axes = given.get("axes", {})
        if not isinstance(axes, Mapping):
            raise ConfigError(f"axes = {axes!r}: should be a table of axes, [axes]", "axes", axes)
        sample = given.get("sample")
        if sample is not None and not isinstance(sample, Mapping):
            raise ConfigError(f"sample = {sample!r}: should be a table, [sample]", "sample", sample)
        study = Study(
            file=file,
            axes=tuple(read_axis(name, value) for name, value in axis_entries(axes).items()),
            variants=_variants(given.get("variants", ())),
            sample=None if sample is None else read_sample(sample),
            repeats=_count(given, "repeats", 1, MOST_CELLS),
            confidence=_confidence(given.get("confidence", 0.95)),
            max_cells=_count(given, "max_cells", USUAL_MOST_CELLS, MOST_CELLS),
        )
        _check_names(study)
    _check(study)
    return study


def _check_names(study: Study) -> None:
    """Raise ConfigError where an axis, a variant or the sample names what there is not."""
    folder = study.file.folder
    for axis in study.axes:
        check_names("axes.", axis, folder)
    for at, variant in enumerate(study.variants, 1):
        for key, value in variant.items():
            check_name(f"variants, number {at}: ", key, value, folder)
    for of in study.sample.dimensions if study.sample is not None else ():
        check_names("sample.axes.", of, folder)


def _check(study: Study) -> None:
    """What only the whole study shows: keys set twice, no axis, too many cells."""
    groups = [("axes", [axis.key for axis in study.axes])]
    groups.append(("variants", list(dict.fromkeys(key for variant in study.variants for key in variant))))
    groups.append(("sample.axes", [] if study.sample is None else [of.key for of in study.sample.dimensions]))
    owner: dict[str, str] = {}
    for where, keys in groups:
        for key in keys:
            if key in owner:
                raise ConfigError(f"{where}.{key}: {owner[key]} sets it too; it can vary in one of them", key)
            owner[key] = where
    if not owner and study.repeats == 1:
        others = [name for name in OF_OTHERS if name in study.file.sections]
        hint = f"; [{others[0]}] is for `kvrm {others[0]}`" if others else ""
        raise ConfigError(
            f"axes: missing: nothing varies; name at least one key and its values in [axes]{hint}", "axes"
        )
    if study.repeats > 1 and "seed" in owner:
        raise ConfigError(f"repeats = {study.repeats}: repeats take seeds in turn, and {owner['seed']} sets seed too")
    if study.size > study.max_cells:
        most = f"; max_cells = {study.max_cells:,}"
        if study.max_cells < MOST_CELLS:
            most += f" (set it to have more, up to {MOST_CELLS:,})"
        raise ConfigError(f"{study.size:,} cells: {_product(study)}{most}", "max_cells", study.size)
    needs_trace({**study.file.base, **owner}, " (TRACE of `kvrm replay`)")


def _product(study: Study) -> str:
    """Where a number of cells comes from: ``policy 3 x trace.speedup 8 x 5 repeats``."""
    parts = [f"{axis.key} {len(axis.values):,}" for axis in study.axes]
    if study.variants:
        parts.append(f"{len(study.variants):,} variants")
    if study.sample is not None:
        parts.append(f"{study.sample.points:,} sampled points")
    if study.repeats > 1:
        parts.append(f"{study.repeats:,} repeats")
    return " x ".join(parts)


def _variants(given: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in given):
        raise ConfigError(f"variants = {given!r}: should be tables of keys, [[variants]]", "variants", given)
    found = []
    for at, entry in enumerate(given):
        try:
            found.append(checked(flattened(entry)))
        except ConfigError as error:
            raise ConfigError(f"variants, number {at + 1}: {error.message}", error.key, error.value) from None
        if not entry:
            raise ConfigError(f"variants, number {at + 1}: empty: it sets no key", "variants")
    return tuple(found)


def _count(given: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} = {value!r}: should be a whole number from 1 to {most:,}", name, value)
    return value


def _confidence(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ConfigError(f"confidence = {value!r}: should be a share between 0 and 1, e.g. 0.95", "confidence", value)
    return float(value)
