"""Loads the types of the vendors' SDKs, and checks values against them. A member that a type does not name is a fault."""

import base64
import binascii
import collections.abc
import enum
import importlib
import os
import sys
import types
import typing
from pathlib import Path

SDKS = Path(__file__).resolve().parents[2] / ".tools" / "judges"
sys.path.insert(0, str(SDKS))
for bare in ("anthropic", "openai", "google.genai", "ollama"):
    # Importing a whole SDK would also import its client and the client's dependencies. An empty package gives access to the types alone.
    sys.modules[bare] = types.ModuleType(bare)
    sys.modules[bare].__path__ = [str(SDKS.joinpath(*bare.split(".")))]

import pydantic  # noqa: E402
import typing_extensions as te  # noqa: E402

# The SDK sends these members as headers.
AS_HEADERS = ("betas", "user_profile_id", "workspace_id")
LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)
DICTS = (dict, collections.abc.Mapping)
PLAIN = {str: str, int: int, float: (int, float), bool: bool, type(None): type(None), dict: dict, list: list}


arguments_of = te.get_args


def load(module, name):
    return getattr(importlib.import_module(module), name)


class Judge:
    """Checks a value against a type. `more` has the members that a type may have besides its own.

    A model class among typed dictionaries describes a server's answer to Python callers. No request has that form.
    """

    def __init__(self, more=None, models=False):
        self.more, self.models = more or {}, models

    def faults(self, value, kind, at):
        origin, inner = te.get_origin(kind), te.get_args(kind)
        if origin in (te.Required, te.NotRequired):
            return self.faults(value, inner[0], at)
        if origin is te.Annotated:
            return self.faults(value, inner[0], at)
        if origin in (typing.Union, types.UnionType):
            files = any(os.PathLike in (alternative, te.get_origin(alternative)) for alternative in inner)
            return not_base64(value, at) if files else self.of_union(value, inner, at)
        if origin is te.Literal:
            return [] if any(value == known and type(value) is type(known) for known in inner) else [f"{at}: {value!r:.80} is none of {inner}"]
        if kind in (typing.Any, object):
            return []
        if kind is bytes or getattr(kind, "__module__", "") == "ollama._types" and kind.__name__ == "Image":
            return not_base64(value, at)
        if origin in LISTS or getattr(origin, "__name__", "") == "SequenceNotStr":
            if not isinstance(value, list):
                return [f"{at}: {value!r:.80} is no list"]
            return [fault for index, item in enumerate(value) for fault in self.faults(item, inner[0], f"{at}[{index}]")]
        if origin in DICTS:
            if not isinstance(value, dict):
                return [f"{at}: {value!r:.80} is no object"]
            return [fault for name, item in value.items() for fault in self.faults(item, inner[1], f"{at}.{name}")]
        if te.is_typeddict(kind):
            return self.of_members(value, kind.__name__, members_of_dict(kind), at)
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel) and self.models:
            return self.of_members(value, kind.__name__, members_of_model(kind), at)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            # The SDK's enums accept either case, and so does its vendor's documentation.
            return [] if str(value).upper() in [known.value for known in kind] else [f"{at}: {value!r:.80} is no {kind.__name__}"]
        fits = isinstance(value, PLAIN.get(kind, ())) and (kind is bool or not isinstance(value, bool))
        return [] if fits else [f"{at}: {value!r:.80} is no {getattr(kind, '__name__', kind)}"]

    def of_union(self, value, kinds, at):
        """Returns the faults for the intended alternative: the one with the same literals in `type` and `role`, else the closest one."""
        tried = [self.faults(value, kind, at) for kind in kinds]
        kinds_differ = lambda faults: sum(fault.startswith((f"{at}.type: ", f"{at}.role: ")) for fault in faults)
        rank = lambda faults: (any(fault.startswith(f"{at}: ") for fault in faults), kinds_differ(faults), len(faults))
        return min(tried, key=rank)

    def of_members(self, value, name, members, at):
        if not isinstance(value, dict):
            return [f"{at}: {value!r:.80} is no {name}"]
        known = {**members, **{more: (kind, False) for more, kind in self.more.get(name, {}).items()}}
        missing = [f"{at}.{member}: is missing in a {name}" for member, (_, must) in known.items() if must and member not in value]
        unknown = [f"{at}.{member}: is unknown in a {name}" for member in value if member not in known]
        inner = [fault for member in value if member in known for fault in self.faults(value[member], known[member][0], f"{at}.{member}")]
        return missing + unknown + inner


def members_of_dict(kind):
    """Returns each member with its type and whether it is required. Annotations are strings, so Python itself misses most `Required`."""
    hints, total = te.get_type_hints(kind, include_extras=True), kind.__required_keys__
    wraps = {name: te.get_origin(hint) for name, hint in hints.items()}
    must = {name: wrap is te.Required or (wrap is not te.NotRequired and name in total) for name, wrap in wraps.items()}
    return {name: (hint, must[name]) for name, hint in hints.items() if name not in AS_HEADERS}


def members_of_model(kind):
    return {field.alias or name: (field.annotation, field.is_required()) for name, field in kind.model_fields.items()}


def not_base64(value, at):
    try:
        return [] if base64.b64decode(value, validate=True) else [f"{at}: is empty"]
    except (binascii.Error, TypeError, ValueError):
        return [f"{at}: {value!r:.80} is no base64"]
