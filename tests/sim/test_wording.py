"""What messages about a wrong value say would be right: our words, whole, for whatever pydantic found wrong."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from kvrm_sim.config import load_hardware, load_policy
from kvrm_sim.errors import ConfigError
from kvrm_sim.tables import PositiveFloat, PositiveInt
from kvrm_sim.wording import wanted


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (PositiveInt, "3", "a whole number, 1 or more"),
        (PositiveInt, 10**20, "a whole number from 1 to 2,147,483,647"),
        (PositiveInt | None, 0, "a whole number, 1 or more"),
        (StrictInt, "x", "a whole number"),
        (Annotated[StrictInt, Field(ge=0, le=2)], 3, "a whole number from 0 to 2"),
        (PositiveFloat, "x", "a number above 0"),
        (PositiveFloat, math.inf, "a finite number above 0"),
        (Annotated[StrictFloat, Field(ge=0, lt=1)], 1.0, "a number, at least 0 and below 1"),
        (Annotated[StrictFloat, Field(gt=0, le=0.5)], 1.0, "a number above 0 and at most 0.5"),
        (StrictBool, "yes", "true or false"),
        (StrictStr, 3, "a text"),
        (Annotated[StrictStr, Field(min_length=1)], "", "a text that is not empty"),
        (Literal["a", "b", "c"], "d", "'a', 'b' or 'c'"),
        (Literal["a"], "d", "'a'"),
        (PositiveFloat | Literal["tick"] | None, "tock", "a number above 0, or 'tick'"),
        (Annotated[tuple[StrictInt, ...], Field(min_length=2, max_length=2)], [],
         "a list of 2 values, each a whole number"),
        (dict[str, StrictInt], 3, "a table of keys, each with a whole number"),
    ],
)  # fmt: skip
def test_what_is_wanted_is_said_whole(annotation: Any, value: object, said: str) -> None:
    assert wanted(annotation, value) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_bytes": {"value": 1.0}}, "hardware.memory_bytes.provenance: missing, and it has no default"),
        ({"memory_bytes.provenance": "x"},
         "hardware.memory_bytes.provenance = 'x': should be 'measured', 'published', 'datasheet' or 'assumed'"),
        ({"memory_bytes.value": "much"}, "hardware.memory_bytes.value = 'much': should be a number"),
        ({"memory_bytes.source": ""}, "hardware.memory_bytes.source = '': should be a text that is not empty"),
        ({"memory_bytes": 3.0}, "hardware.memory_bytes = 3.0: should be a table with value, provenance and source"),
        ({"yardsticks_ns": {"sort": 0.0}},
         "hardware.yardsticks_ns = {'sort': 0.0}: should be a table of keys, each with a number above 0"),
    ],
)  # fmt: skip
def test_a_wrong_profile_names_the_key_and_not_the_way_pydantic_took(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_hardware("a100-80gb-sxm").override(changes)
    assert str(caught.value) == said


def test_a_table_that_is_none_is_refused_as_one() -> None:
    with pytest.raises(ConfigError, match="pager = 3: should be a table of keys"):
        load_policy("kv-rm").override({"pager": 3})
