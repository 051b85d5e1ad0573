"""Derives JSON Schemas from annotations, and converts values to the annotated types."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class Misfit(ValueError):
    """Names a value that does not fit its schema."""


def schema_of(annotation: Any) -> dict[str, Any]:
    """Returns the JSON Schema of an annotation: plain types, lists, dicts, `Literal`, enums, optional types, dataclasses, and
    `Annotated[T, "description"]`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        texts = [text for text in args[1:] if isinstance(text, str)]
        return {**schema_of(args[0]), **({"description": texts[0]} if texts else {})}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if annotation is Any or annotation is inspect.Parameter.empty:
        return {}
    if annotation is None or annotation is type(None):
        return {"type": "null"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(arg) for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if annotation is list or origin is list:
        return {"type": "array", **({"items": schema_of(args[0])} if args else {})}
    if annotation is dict or origin is dict:
        return {"type": "object", **({"additionalProperties": schema_of(args[1])} if args else {})}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"enum": [member.value for member in annotation]}
    if dataclasses.is_dataclass(annotation):
        return object_of(_fields(annotation))
    raise TypeError(f"no JSON Schema is known for {annotation!r}; use plain types, list, dict, Literal, Enum or a dataclass")


def object_of(fields: dict[str, tuple[Any, bool]]) -> dict[str, Any]:
    """Returns the schema of an object. Each field has an annotation, and whether it is required."""
    required = [name for name, (_, needed) in fields.items() if needed]
    properties = {name: schema_of(annotation) for name, (annotation, _) in fields.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def fit_object(fields: dict[str, tuple[Any, bool]], value: Any, where: str) -> dict[str, Any]:
    """Returns the fields of an object, each converted to its annotation."""
    if not isinstance(value, dict):
        raise Misfit(f"{where} must be an object")
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise Misfit(f"`{unknown[0]}` is not known in {where}; known are: {', '.join(fields)}")
    missing = [name for name, (_, needed) in fields.items() if needed and name not in value]
    if missing:
        raise Misfit(f"`{missing[0]}` is missing in {where}")
    return {name: fit(fields[name][0], given, f"`{name}`") for name, given in value.items()}


def fit(annotation: Any, value: Any, where: str) -> Any:
    """Returns the value converted to the annotation, or raises a `Misfit`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return fit(args[0], value, where)
    if annotation is Any or annotation is inspect.Parameter.empty:
        return value
    if origin in (Union, types.UnionType):
        return _first(args, value, where)
    if origin is Literal or isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _chosen(annotation, value, where)
    if annotation is list or origin is list:
        if not isinstance(value, list):
            raise Misfit(f"{where} must be an array")
        return [fit(args[0], item, f"{where}[{at}]") for at, item in enumerate(value)] if args else value
    if annotation is dict or origin is dict:
        if not isinstance(value, dict):
            raise Misfit(f"{where} must be an object")
        return {key: fit(args[1], item, f"{where}.{key}") for key, item in value.items()} if args else value
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return annotation(**fit_object(_fields(annotation), value, where))
    return _plain(annotation, value, where)


def _plain(annotation: Any, value: Any, where: str) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is float and number and math.isfinite(value):
        return float(value)
    if annotation is int and number and float(value).is_integer():
        return int(value)
    if annotation in (str, bool, type(None)) and isinstance(value, annotation) or annotation is None and value is None:
        return value
    raise Misfit(f"{where} must be of type {schema_of(annotation)['type']}")


def _first(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    for choice in choices:
        try:
            return fit(choice, value, where)
        except Misfit as misfit:
            last = misfit
    raise last


def _chosen(annotation: Any, value: Any, where: str) -> Any:
    allowed = schema_of(annotation)["enum"]
    if not any(value == one and type(value) is type(one) for one in allowed):
        raise Misfit(f"{where} must be one of {', '.join(map(repr, allowed))}")
    return value if get_origin(annotation) is Literal else annotation(value)


def _fields(annotation: Any) -> dict[str, tuple[Any, bool]]:
    hints = get_type_hints(annotation, include_extras=True)
    empty = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is empty and field.default_factory is empty)
        for field in dataclasses.fields(annotation)
    }
