"""Masks tokens, keys and passwords in what is shown or written: command lines, settings, output of processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["MASK", "is_secret_name", "masked_text", "masked_value", "masked_words", "secrets_in"]

MASK = "***"
"""Stands in the place of a secret."""

_SECRET_WORDS = frozenset(
    {
        *("token", "tok", "secret", "password", "passwd", "passphrase", "credential", "credentials"),
        *("authorization", "auth", "cookie", "signature", "apikey"),
    }
)
"""With what the name of a secret ends; ``hub_tok`` is what argparse takes for ``hub_token``."""
_SECRET_ENDINGS = frozenset({"key", "keys", "pwd", "pass"})
"""With what it ends if there is a word before it: ``wandb_key``, but not ``key``."""
_SHORT_OPTIONS = ("-t", "-k")
_VOCABULARY = frozenset({"pad", "eos", "bos", "unk", "sep", "cls", "mask", "start", "end", "image", "special"})
"""Words before ``token`` in the names of those that belong to a vocabulary."""
_PLAIN = re.compile(r"true|false|none|null|yes|no|-?|<[A-Z_]+>|\*\*\*", re.IGNORECASE)
"""Values that are no secrets, whatever their name; those in ``<>`` are masked already."""
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_SHORTEST = 6
"""Characters from which a secret is looked for in other text, where a shorter one would be found in words."""

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"hf_(?:(?=[A-Za-z]*[0-9]|[a-z]*[A-Z])[A-Za-z0-9]{8,}|[A-Za-z0-9]{16,})"
    r"|(?:api_org|hf_oauth|hf_jwt|gh[oprsu]|github_pat|npm|r8|gsk|wandb_v[0-9]+)_\w{10,}"
    r"|(?:sk|xox[abeoprs]|glpat|nvapi|pypi|local)-[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{12,}|AIza[\w-]{20,}|dapi[0-9a-f]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|hooks\.slack\.com/services/[\w/]+"
    r")",
    re.DOTALL,
)
"""What tokens of well-known services, and private keys, look like."""
_IN_ADDRESS = re.compile(
    r"(?<![\w+.-])(?P<scheme>[A-Za-z][\w+.-]*+://)[^\s/'\"]{1,256}@"
    r"|(?<![\w/.@:+-])[\w.+-]++:(?!//)[^\s@'\"]{1,256}@(?=[A-Za-z0-9\[])"
)
"""A user and password in front of a host, with or without a scheme."""
_BEARER = re.compile(r"\b(?P<kind>Bearer|Basic)(?P<space>\s+)(?P<value>[\w.~+/-]{4,}=*)")
_NAMED = re.compile(
    r"(?P<quote>\\{0,8}[\"']|)(?<![-+\w.])(?P<name>[-+\w.]++)(?P=quote)(?P<sign>\s{0,8}(?:=>?|:)\s{0,8}|\s{1,8})"
)
"""A name in text in front of what may be its value: ``token=…``, ``"token": "…"``, ``--token …``."""
_VALUE = re.compile(
    r"(?P<quote>\\{0,8}[\"'])(?P<quoted>(?:(?!(?P=quote)).)*)|(?P<bare>[^\s\"'\\,;&(){}\[\]]+)", re.DOTALL
)


def is_secret_name(name: str) -> bool:
    """Return whether an option, field or variable of this name has a secret as its value."""
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    *before, last = re.split(r"[^a-z0-9]+", snake_case)
    before = [word for word in before if word]
    if last == "token" and before and before[-1] in _VOCABULARY:
        return False
    if last in _SECRET_WORDS or (last in _SECRET_ENDINGS and before):
        return True
    return name in _SHORT_OPTIONS or snake_case.endswith("hub_to")


def secrets_in(words: Sequence[str], variables: Mapping[str, str]) -> frozenset[str]:
    """Return the values of secrets in a command line and an environment, to mask wherever they are repeated."""
    found = [value for name, value in variables.items() if is_secret_name(name) and _is_secret(name, value)]
    for word, shown in zip(words, masked_words(words), strict=True):
        start, mask, end = shown.partition(MASK)
        if mask and word.startswith(start) and word.endswith(end):
            found.append(word[len(start) : len(word) - len(end)])
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def masked_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with its secrets masked, in every form in which options are written."""
    shown: list[str] = []
    option = ""
    for word in words:
        name, sign, value = word.partition("=")
        if option and not word.startswith("-"):
            shown.append(_masked(option, word))
        elif sign and is_secret_name(name):
            shown.append(f"{name}={_masked(name, value)}")
        else:
            shown.append(masked_text(word))
        option = word if word.startswith("-") and is_secret_name(word) else ""
    return shown


def masked_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` with its secrets masked: by the names before them, by their shape, or because they are known.

    Args:
        text: A message, a log, JSON, a traceback.
        secrets: Values that are masked wherever they are.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _SHAPES.sub(MASK, text)
    text = _IN_ADDRESS.sub(lambda found: f"{found['scheme'] or ''}{MASK}@", text)
    text = _BEARER.sub(lambda found: f"{found['kind']}{found['space']}{MASK}", text)
    return "".join(_named_masked(text))


def _named_masked(text: str) -> Iterator[str]:
    position = 0
    for found in _NAMED.finditer(text):
        name, is_spaced = found["name"], not found["sign"].strip()
        if found.start() < position or (is_spaced and not name.startswith("-")) or not is_secret_name(name):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and not (is_spaced and value[0].startswith("-")):
            kind = "bare" if value["quote"] is None else "quoted"
            yield text[position : value.start(kind)]
            yield _masked(name, value[kind])
            position = value.end(kind)
    yield text[position:]


def masked_value(name: str, value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return the value of a setting with its secrets masked, at any depth of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: masked_value(str(key), inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked_value(name, inner, secrets) for inner in value)
    if not isinstance(value, str):
        return value
    return _masked(name, value) if is_secret_name(name) else masked_text(value, secrets)


def _masked(name: str, value: str) -> str:
    return MASK if _is_secret(name, value) else value


def _is_secret(name: str, value: str) -> bool:
    """Return whether ``value`` is a secret; of an option ``-t`` or ``-k`` it may well be a number."""
    is_number = len(name) == 2 and _NUMBER.fullmatch(value) is not None
    return not is_number and _PLAIN.fullmatch(value) is None
