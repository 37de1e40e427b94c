"""Masks tokens, keys and passwords in what is shown or written: command lines, settings, output of processes."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

MASK = "***"
"""Stands in the place of a secret."""

_SECRET_WORDS = frozenset(
    {
        *("token", "tok", "jwt", "secret", "secrets", "credential", "credentials", "signature", "sig"),
        *("password", "passwords", "passwd", "pw", "passphrase", "passcode", "authorization", "auth", "cookie"),
    }
)
"""With what the name of a secret ends; ``hub_tok`` is what argparse takes for ``hub_token``."""
_IN_ONE_WORD = re.compile(
    r"(?:(?:api|access|auth|private|secret|ssh|wandb|comet)key"
    r"|(?:api|access|auth|bot|hf|hub|huggingface|github|gitlab|refresh|session|wandb)token)s?$|setcookie$"
)
"""Names of secrets written without a sign between their words."""
_OF_IT = re.compile(r"(?:(?<=key)|(?<=secret))_id$|_value$")
"""What may follow the name of a secret: ``AWS_ACCESS_KEY_ID``."""
_SECRET_ENDINGS = frozenset({"key", "keys", "pwd", "pass"})
"""With what it ends if there is a word before it: ``wandb_key``, but not ``key``."""
_SHORT_OPTIONS = ("-t", "-k")
_USER_OPTIONS = ("-u", "-U", "--user", "--proxy-user")
"""Options whose value may be ``user:password``."""
_VOCABULARY = frozenset({"pad", "eos", "bos", "unk", "sep", "cls", "mask", "start", "end", "image", "special"})
"""Words before ``token`` in the names of those that belong to a vocabulary."""
_PLAIN = re.compile(r"true|false|none|null|yes|no|-?|<[A-Z_]+>|\*\*\*", re.IGNORECASE)
"""Values that are no secrets, whatever their name; those in ``<>`` are masked already."""
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_SHORTEST = 6
"""Characters from which a secret is looked for in other text, where a shorter one would be found in words."""

_PLAIN_PART = re.compile(
    r"[A-Z]?[a-z]*(?:[A-Z][a-z]+)*(?:(?<=[a-z]{3})[A-Z]{1,3})?[0-9]{0,4}[a-z]?|[A-Z]+[0-9]{0,4}|[0-9]{1,4}[a-z]*"
)
"""What is between hyphens, dots and underscores in the name of an option: words, with a number behind or before."""

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"hf_(?:(?=[A-Za-z]*[0-9]|[a-z]*[A-Z])[A-Za-z0-9]{8,}|[A-Za-z0-9]{16,})"
    r"|(?:api_org|hf_oauth|hf_jwt|gh[oprsu]|github_pat|npm|r8|gsk|wandb_v[0-9]+)_\w{10,}"
    r"|(?:sk|xox[abeoprs]|glpat|nvapi|pypi|local)-[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{12,}|AIza[\w-]{20,}|dapi[0-9a-f]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|hooks\.slack\.com/services/[\w/]+|discord(?:app)?\.com/api/webhooks/[\w/-]+|webhook\.office\.com/[\w/@-]+"
    r")"
    r"|(?<![0-9])[0-9]{8,10}:AA[\w-]{30,}",
    re.DOTALL,
)
"""What tokens of well-known services, and private keys, look like."""
_IN_ADDRESS = re.compile(
    r"(?<![\w+.-])(?P<scheme>[A-Za-z][\w+.-]*+://)[^\s/'\"]{1,256}@"
    r"|(?<![\w/.@:+-])[\w.+-]++:(?!//)[^\s@'\"]{1,256}@(?=[A-Za-z0-9\[])"
)
"""A user and password in front of a host, with or without a scheme."""
_BEARER = re.compile(r"\b(?P<kind>[Bb]earer|Basic)(?P<space>\s+)(?P<value>[\w.~+/-]{4,}=*)")
_USER = re.compile(
    r"(?<![-+\w.])(?:-[uU]|--(?:proxy-)?user(?=[=,\s'\"]))[=,\s'\"]{0,8}"
    r"(?P<pair>[^\s:'\"]+:[^\s'\"]+)"
)
"""An option of curl and others with a user and a password."""
_PAIR = re.compile(r"(?P<user>[^\s:]+:)(?![/\\])(?P<password>.+)")
"""A user and a password; no address, and no path of Windows."""
_GLUED = re.compile(r"(?<![-+\w./])-[tk][\w.~+/-]{6,}+={0,2}(?![^\s\"'`,;\])}])")
"""A short option in text with its value right behind it, or another option that begins with the letter."""
_NAMED = re.compile(
    r"(?P<quote>\\{0,8}[\"']|)(?<![-+\w.])(?!(?<=%)[0-9A-Fa-f]{2})(?P<name>(?:[-+\w.]|%[0-9A-Fa-f]{2})++)(?P=quote)"
    r"(?P<sign>\s{0,8}(?:=>?|:)\s{0,8}|,\s{0,8}(?=[\"'])|\s{1,8})"
)
"""A name in text in front of what may be its value: ``token=…``, ``"token": "…"``, ``'--token', '…'``."""
_VALUE = re.compile(
    r"(?:[&!][\w!.-]*[ \t]+)?(?:"
    r"[bfru]{0,2}(?P<quote>\\{0,8}(?:'{3}|\"{3}|[\"']))(?P<quoted>(?:(?!(?P=quote)).)*)"
    r"|(?P<several>[\[({][^][(){}]*[])}]|-[ \t]+[^\n]+(?:\n[ \t]*-[ \t]+[^\n]+)*)"
    r"|[|>][-+1-9]{0,2}[ \t]*\n(?P<lines>[ \t]+[^\n]*(?:\n[ \t]+[^\n]*)*)"
    r"|(?P<bare>[^\s\"'`\\,;&(){}\[\]]+))",
    re.DOTALL | re.IGNORECASE,
)
"""A value in quotes, several in brackets or in a list of YAML, a text of several lines of YAML, a word."""
_HEADER = re.compile(r"authorization|cookie", re.IGNORECASE)
_HEADER_VALUE = re.compile(r"(?P<bare>[^\n\"'\\]+)")
_ELEMENT = re.compile(r"(?:<|&lt;)(?P<name>[\w.:-]{1,256})(?:\s[^<>]{0,1024})?(?:>|&gt;)")
"""The beginning of an element of XML."""
_CLOSING = re.compile(r"(?:<|&lt;)/(?P<name>[\w.:-]{1,256})\s*(?:>|&gt;)")
"""Its end."""
_ENCODED = re.compile(r"(?<![^\s\"'<>])[^\s\"'<>%]*+%[0-9A-Fa-f]{2}[^\s\"'<>]*+")
"""A word with percent signs as in addresses."""


def is_secret_name(name: str) -> bool:
    """Return whether an option, field or variable of this name has a secret as its value."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", unquote(name)).lower()
    snake_case = _OF_IT.sub("", re.sub(r"[^a-z0-9]+", "_", words))
    *before, last = snake_case.split("_")
    before = [word for word in before if word]
    if last == "token" and before and before[-1] in _VOCABULARY:
        return False
    if last in _SECRET_WORDS or (last in _SECRET_ENDINGS and before) or _IN_ONE_WORD.search("".join([*before, last])):
        return True
    is_password = last == "pwd" and name not in ("PWD", "OLDPWD")  # those are folders
    return is_password or name in _SHORT_OPTIONS or snake_case.endswith("hub_to")


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
        if option and not _is_option(word):
            shown.append(_pair_masked(word) if option in _USER_OPTIONS else _masked(option, word))
            option = option if option.endswith("s") else ""
            continue
        if sign and is_secret_name(name):
            shown.append(f"{name}={_masked(name, value)}")
        elif word.startswith(_SHORT_OPTIONS) and not _is_option(word):
            shown.append(_glued_masked(word))
        else:
            shown.append(masked_text(word))
        option = word if word in _USER_OPTIONS or (word.startswith("-") and is_secret_name(word)) else ""
    return shown


def _is_option(word: str) -> bool:
    """Return whether ``word`` is an option, rather than a secret behind a hyphen or behind the letter of an option.

    A secret of small letters alone is taken for an option.
    """
    name = word.lstrip("-").partition("=")[0]
    is_short = len(name) < _SHORTEST
    return word.startswith("-") and (is_short or all(map(_PLAIN_PART.fullmatch, re.split(r"[-_.]", name))))


def _glued_masked(word: str) -> str:
    """Return ``-tVALUE`` with the value masked, unless it is the name of an option that begins with the letter."""
    return word if _is_option(word) else word[:2] + _masked(word[:2], word[2:])


def _pair_masked(pair: str) -> str:
    """Return ``user:password`` with the password masked, unless that is a number: of a group, or a port."""
    found = _PAIR.fullmatch(pair)
    is_secret = found is not None and _NUMBER.fullmatch(found["password"]) is None
    return found["user"] + _masked("", found["password"]) if found is not None and is_secret else masked_text(pair)


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
    text = _USER.sub(lambda found: found[0].removesuffix(found["pair"]) + _pair_masked(found["pair"]), text)
    text = _GLUED.sub(lambda found: _glued_masked(found[0]), text)
    text = "".join(_named_masked("".join(_elements_masked(text))))
    return _ENCODED.sub(lambda found: _decoded_masked(found[0], secrets), text)


def _decoded_masked(word: str, secrets: Iterable[str]) -> str:
    """Return ``word`` decoded and masked if there is a secret in what is encoded, else as it is."""
    decoded = unquote(word)
    masked = decoded if decoded == word else masked_text(decoded, secrets)
    return word if masked == decoded else masked


def _elements_masked(text: str) -> Iterator[str]:
    """Yield ``text`` in parts, with what is inside of XML elements of secret names masked."""
    position = 0
    ends: dict[str, list[int]] = {}
    for closing in _CLOSING.finditer(text):
        if is_secret_name(closing["name"]):
            ends.setdefault(closing["name"], []).append(closing.start())
    for found in _ELEMENT.finditer(text) if ends else ():
        places = ends.get(found["name"], [])
        following = bisect.bisect_left(places, found.end())
        if following < len(places) and found.start() >= position:
            yield text[position : found.end()]
            position = places[following]
            yield _masked(found["name"], text[found.end() : position].strip())
    yield text[position:]


def _named_masked(text: str) -> Iterator[str]:
    position = 0
    for found in _NAMED.finditer(text):
        name, sign = found["name"], found["sign"].strip()
        is_option = sign in ("", ",")  # then a value follows only the name of an option, and is none itself
        if found.start() < position or (is_option and not name.startswith("-")) or not is_secret_name(name):
            continue
        value = (_HEADER_VALUE if sign == ":" and _HEADER.search(name) else _VALUE).match(text, found.end())
        value = value or _VALUE.match(text, found.end())
        if value is None:
            continue
        kind = next(kind for kind, part in value.groupdict().items() if part is not None and kind != "quote")
        if not (is_option and _is_option(value[kind])):
            yield text[position : value.start(kind)]
            yield _masked(name, value[kind])
            position = value.end(kind)
    yield text[position:]


def masked_value(name: str, value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return the value of a setting with its secrets masked, at any depth of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: masked_value(str(key), inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inside = [masked_value(name, inner, secrets) for inner in value]
        return tuple(inside) if isinstance(value, tuple) else inside
    if not isinstance(value, str):
        return value
    return _masked(name, value) if is_secret_name(name) else masked_text(value, secrets)


def _masked(name: str, value: str) -> str:
    return MASK if _is_secret(name, value) else value


def _is_secret(name: str, value: str) -> bool:
    """Return whether ``value`` is a secret; of an option ``-t`` or ``-k`` it may well be a number."""
    is_number = len(name) == 2 and _NUMBER.fullmatch(value) is not None
    return not is_number and _PLAIN.fullmatch(value) is None
