"""``hf-compat completion``: the script with which a shell completes ``hf-compat``, made from the command's parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields

from hf_compat.arguments import Seq2SeqTrainingArguments

_BASH = """\
# Completion of hf-compat {version} for {shell}, written by `hf-compat completion {shell}`.
_hf_compat() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
    local words="" options="" fields="" word number
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case "$command" in
{options}
    esac
    case "$command $previous" in
{choices}
    esac
    # What follows a script are options of its own, often fields of TrainingArguments.
    for ((number = 2; number < COMP_CWORD; number++)); do
        word=${{COMP_WORDS[number]}}
        case "$command $word" in
            {with_script})
                fields="{fields}" ;;
        esac
    done
    case "$command $fields" in
        "$command ") ;;
        {mixed}) options+=" $fields" ;;
        *) options=$fields ;;
    esac
    case "$current" in
        -*) words=$options ;;
    esac
    [ -z "$words" ] || COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _hf_compat hf-compat
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
_INDENT = " " * 8
_MIXED = ("port", "verify")
"""Commands whose own options may also follow the script."""


def completion(parser: argparse.ArgumentParser, shell: str, version: str) -> str:
    """Return the script that has ``shell`` complete commands, options, choices, files and, after a script, fields.

    Args:
        parser: That of ``hf-compat``, with its commands.
        shell: ``"bash"`` or ``"zsh"``, which reads the one for bash.
        version: That of hf_compat.
    """
    commands = _commands(parser)
    choices = [
        f'{_INDENT}"{name} {option}") words="{" ".join(map(str, action.choices))}" ;;'
        for name, command in commands.items()
        for action in command._actions
        for option in action.option_strings or ([name] if action.choices else [])
        if action.choices
    ]
    script = _BASH.format(
        version=version,
        shell=shell,
        commands=" ".join([*commands, *_options(parser)]),
        options="\n".join(
            f'{_INDENT}{name}) options="{" ".join(_options(each))}" ;;' for name, each in commands.items()
        ),
        choices="\n".join(choices),
        with_script=" | ".join(f'"{name} "*.py' for name, each in commands.items() if _takes_words(each)),
        mixed=" | ".join(f'"{name} "*' for name in _MIXED),
        fields=" ".join(f"--{item.name}" for item in fields(Seq2SeqTrainingArguments)),
    )
    return script if shell == "bash" else _ZSH + script


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings


def _takes_words(parser: argparse.ArgumentParser) -> bool:
    """Return whether a script's own words may follow."""
    return any(action.nargs == argparse.REMAINDER for action in parser._actions)
