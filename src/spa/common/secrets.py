"""Redacts keys and passwords in everything printed or saved. Imports no torch.

Secrets are the values of environment variables: the one named by ``engine.api_key_env``, those read by a config
(``${oc.env:NAME}``), and ``COMMON``. Exceptions: values of fewer than ``SHORTEST`` characters (``EMPTY``, ``ollama``, ``cuda:0``),
which would redact ordinary words, and existing paths (``${oc.env:SCRATCH}``).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote

from spa.common.text import clean

SHORTEST = 8
COMMON = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
REDACTED = "[redacted]"

_SENT = ("env.instruction", "agent.")  # settings that are sent to a model, and saved, as they are

_known: dict[str, str] = {}  # value -> its environment variable
_written: dict[tuple[str, str], str] = {}  # dotted key and value of a setting -> how the config wrote it

_REFERENCE = re.compile(r"""\$\{\s*oc\.env\s*:\s*(['"]?)(\w+)\1\s*(?:,\s*([^{}]*?)\s*)?\}""")
_ANY_REFERENCE = re.compile(r"oc\.env\s*:")
_NAMED = re.compile(r"""oc\.env\s*:\s*['"]?(\w+)""")
# A URL, the end of its scheme, and the user of user:password@; a port is not a password.
_ADDRESS = re.compile(r"""[^\s"'<>]+""")
_SCHEME = re.compile(r"(?<=[a-z0-9+.-])://?", re.IGNORECASE)
_USER = re.compile(r"[^/@:]*+:(?!\d++/)")
# A token after "Bearer": any after Authorization, otherwise one that is not an English word.
_BEARER = re.compile(
    r"""(authorization["']?\s*[:=]\s*["']?(?:bearer|basic)\s+|\bbearer\s+(?=[^\s"']*\d|[^\s"']{16}))[\w.~+/=-]{4,}""",
    re.IGNORECASE,
)


def learn(variable: str) -> None:
    """Registers the value of an environment variable as a secret of this process."""
    value = os.environ.get(variable, "").strip()
    if len(value) >= SHORTEST and not (os.sep in value and os.path.exists(value)):
        _known[value] = variable


def forget() -> None:
    """Forgets all secrets except those of ``COMMON``; for tests."""
    _known.clear()
    _written.clear()


def redact(text: str) -> str:
    """``text`` without this process's secrets, ``user:password@`` of addresses and bearer tokens."""
    for value, _ in _secrets():
        for form in {value, quote(value, safe=""), json.dumps(value)[1:-1]}:
            text = text.replace(form, REDACTED)
    return _BEARER.sub(rf"\1{REDACTED}", _ADDRESS.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    """A URL without ``user:password@`` or ``token@``: up to the last ``@``, since a password may contain ``@`` or an unescaped
    slash."""
    address = match[0]
    last = address.rfind("@")
    for scheme in _SCHEME.finditer(address, 0, max(last, 0)):
        start = scheme.end()
        user = _USER.match(address, start)
        slash = address.find("/", start)
        if (user and user.end() <= last) or address.find("@", start + 1, len(address) if slash < 0 else slash) > 0:
            return f"{address[:start]}{REDACTED}{address[last:]}"
    return address


def shown(config: Any) -> dict[str, Any]:
    """A config (any dataclass) as nested dictionaries to print and save.

    A setting that was read from the environment is written as the config wrote it (``${oc.env:NAME}/model``), and so is a secret
    wherever it occurs.
    """

    def hide(text: str, key: str) -> str:
        if (key, text) in _written:
            return _written[key, text]
        for value, variable in _secrets():
            text = text.replace(value, f"${{oc.env:{variable}}}")
        return text

    result: dict[str, Any] = map_texts(dataclasses.asdict(config), hide)
    return result


def from_environment(value: Any, key: str = "", *, missing_ok: bool = False) -> Any:
    """Text, or containers of it, with environment variables substituted for ``${oc.env:NAME}`` and ``${oc.env:NAME,default}``.

    Args:
        key: the dotted key of the setting ``value``; empty for a whole config.
        missing_ok: whether references to unset variables are kept unchanged.

    Raises:
        ValueError: a variable is unset and has no default, or a reference is malformed.
    """

    def value_of(match: re.Match[str]) -> str:
        learn(name := match[2])
        if name in os.environ:
            return os.environ[name]
        if match[3] is not None:
            return match[3].strip("'\"")
        if missing_ok:
            return match[0]
        raise ValueError(f"the environment variable {name} is not set; the config reads it ({match[0]})")

    def read(text: str, key: str) -> str:
        if "${" in text:
            rest = _REFERENCE.sub("", text)
            _check_references(rest)
            _check_grammar(rest, key)
        filled = _REFERENCE.sub(value_of, text)
        if filled != text:
            _remember(key, filled, text)
        return filled

    return map_texts(value, read, key)


def learn_references(value: Any, resolve: Callable[[str], Any]) -> None:
    """Registers as secrets the environment variables referenced in the texts of a config, and how it wrote these settings.

    Args:
        resolve: dotted key -> the setting with its references replaced.

    Raises:
        ValueError: a reference does not name its variable.
    """

    def look(text: str, key: str) -> str:
        _check_references(_NAMED.sub("", text))
        for name in _NAMED.findall(text):
            learn(name)
        if _REFERENCE.search(text):
            _remember(key, str(resolve(key)), text)
        return text

    map_texts(value, look)


def _remember(key: str, value: str, written: str) -> None:
    if key.startswith(_SENT):
        raise ValueError(
            f"{key} is part of prompts, which are sent and saved: it cannot read the environment ({written})"
        )
    _written[key, value] = written


def _check_references(rest: str) -> None:
    if _ANY_REFERENCE.search(rest):
        raise ValueError("an environment variable is read as ${oc.env:NAME} or ${oc.env:NAME,default}")


def _check_grammar(rest: str, key: str) -> None:
    """Refuses what OmegaConf could not read again in the run's config.yaml."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    try:
        OmegaConf.create([rest])
    except GrammarParseError:
        at = f"{key}: " if key else ""
        raise ValueError(
            f"{at}'${{' begins a reference such as ${{oc.env:NAME}}; write '$ {{' where none is meant"
        ) from None


def print_traceback(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, /) -> None:
    """An ``excepthook`` that prints Python's traceback without secrets."""
    print(clean(redact("".join(traceback.format_exception(kind, error, trace)))), end="", file=sys.stderr, flush=True)


def _secrets() -> Iterator[tuple[str, str]]:
    """Values and their variables, longest first: one may contain another."""
    for variable in COMMON:
        learn(variable)
    return iter(sorted(_known.copy().items(), key=lambda pair: -len(pair[0])))


def map_texts(value: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """``value`` with ``change`` applied to every string and its dotted key, except keys of mappings."""
    if isinstance(value, str):
        return change(value, key)
    if isinstance(value, Mapping):
        return {name: map_texts(item, change, f"{key}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change, f"{key}.{index}".lstrip(".")) for index, item in enumerate(value)]
    return value
