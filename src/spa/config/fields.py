"""Types of settings: strict, so ``true`` is not a number and a number is not text. Imports no torch."""

from __future__ import annotations

import copy
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, ConfigDict, Field, Strict

# hide_input_in_errors: a value may be a secret.
STRICT = ConfigDict(extra="forbid", validate_assignment=True, hide_input_in_errors=True)


def setting(default: Any, description: str) -> Any:
    """A field with a description and a default, copied for every instance."""
    return Field(default_factory=lambda: copy.copy(default), description=description)


def _whole(value: Any) -> Any:
    """``1000.0`` and ``1e3`` are whole numbers; ``true`` and ``"1"`` are not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _part_of_a_path(value: str) -> str:
    if not re.fullmatch(r"[\w.-]*", value) or value.startswith("."):
        raise ValueError(f"names a folder: letters, digits, _, - and . only, not {value!r}")
    if len(value) > 100:
        raise ValueError(f"names a folder: at most 100 characters, not {len(value)}")
    return value


def _not_tiny(value: float) -> float:
    if 0 < value < 1e-3:  # logits divided by it may not be finite
        raise ValueError("must be 0 (greedy) or at least 0.001")
    return value


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"names the same twice: {', '.join(map(str, values))}")
    return values


Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0), BeforeValidator(_whole)]
Positive = Annotated[int, Strict(), Field(ge=1), BeforeValidator(_whole)]
Number = Annotated[float, Strict(), AllowInfNan(False)]
NonNegative = Annotated[Number, Field(ge=0)]
AboveZero = Annotated[Number, Field(gt=0)]
Seconds = Annotated[Number, Field(gt=0, le=1e7)]  # what timers of the system can hold
UpToSeconds = Annotated[Number, Field(ge=0, le=1e7)]
Temperature = Annotated[NonNegative, AfterValidator(_not_tiny)]
Threads = Annotated[Count, Field(le=1024)]
Share = Annotated[Number, Field(ge=0, le=1)]
ShareAboveZero = Annotated[Number, Field(gt=0, le=1)]
UpTo90 = Annotated[Number, Field(ge=0, le=0.9)]
Text = Annotated[str, AfterValidator(_not_empty)]
NAMES_FOLDER = AfterValidator(_part_of_a_path)
Folder = Annotated[str, NAMES_FOLDER]
DISTINCT = AfterValidator(_distinct)
Key = Annotated[str, BeforeValidator(str)]
Mapping = dict[Key, Any]

StateFormat = Literal["grid", "coordinates", "random_coordinates"]
Precision = Literal["float32", "bfloat16"]
Prompt = Literal["base", "world_model"]
