"""Reads JSON that others may have written: types, keys and depth are checked, errors are one line. Imports no torch."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AllowInfNan, ConfigDict, Field, TypeAdapter, ValidationError

T = TypeVar("T")

KNOWN_KEYS = ConfigDict(extra="forbid")
"""As ``__pydantic_config__`` of a dataclass: other keys are errors, also in the dataclasses in it."""

Finite = Annotated[float, AllowInfNan(False), Field(ge=-1e300, le=1e300)]
"""Of such numbers millions can be added."""
Whole = Annotated[int, Field(ge=-(10**300), le=10**300)]
Object = dict[str, Any]
Scalars = dict[str, str | Whole | Finite | bool | None]


def parse(kind: type[T], text: str | bytes) -> T:
    """JSON as a ``kind``, a dataclass or a container of plain types; nothing is converted (``"1"`` is no number).

    Raises:
        ValueError: it is not JSON or not of that kind (the message says where), has lone surrogates, numbers of more than 4,300
            digits, or more than 200 levels, which would end the recursion of whoever reads it next.
    """
    try:
        adapter: TypeAdapter[T] = adapter_of(kind)  # type: ignore[arg-type]
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = repr(".".join(map(str, first["loc"]))[:100])[1:-1]  # keys may hold line ends
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
