"""``aiokcc completion``: prints a script by which a shell completes verbs and options. It is made from the parser itself."""

from __future__ import annotations

import argparse
import shlex
from typing import Final

from aiokcc.cli.verb import StoreUse, Verb, argument

__all__ = ["VERB"]

_BASH: Final = """\
# bash completion for aiokcc: aiokcc completion bash > ~/.local/share/bash-completion/completions/aiokcc
_aiokcc() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb="" each
    # bash takes --option=value as three words
    if [[ $word == "=" ]]; then
        word=""
    elif [[ $before == "=" ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $each == -* ]] && continue
        case "$verb $each" in
%(verbs)s
        esac
    done
    case "$verb:$before" in
%(values)s
    esac
    case "$verb" in
%(words)s
    esac
}
complete -o default -F _aiokcc aiokcc
"""
_ZSH: Final = """\
#compdef aiokcc
# zsh completion for aiokcc: aiokcc completion zsh > "${fpath[1]}/_aiokcc", or source it after compinit
_aiokcc() {
    local word=${words[CURRENT]} before=${words[CURRENT-1]} verb="" each
    if [[ $word == --*=* ]]; then
        before=${word%%%%=*}
        compset -P '*='
    fi
    for each in ${words[2,CURRENT-1]}; do
        [[ $each == -* ]] && continue
        case "$verb $each" in
%(verbs)s
        esac
    done
    case "$verb:$before" in
%(values)s
    esac
    case "$verb" in
%(words)s
    esac
    _default
}
if [[ ${funcstack[1]} == _aiokcc ]]; then
    _aiokcc "$@"
else
    compdef _aiokcc aiokcc
fi
"""


def _leaves(parser: argparse.ArgumentParser, path: str = "") -> list[tuple[str, argparse.ArgumentParser]]:
    """Return each verb and part with the words that lead to it; the first is the whole command."""
    found = [(path, parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found += _leaves(below, f"{path} {name}")
    return found


def _subverbs(parser: argparse.ArgumentParser) -> list[str]:
    return [name for a in parser._actions if isinstance(a, argparse._SubParsersAction) for name in a.choices]


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in parser._actions if a.option_strings and a.help != argparse.SUPPRESS]


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    """Return what may stand as the next word that is no option: verbs, parts, or the choices of an argument."""
    named = [a for a in parser._actions if not a.option_strings and a.choices is not None]
    return _subverbs(parser) or [str(choice) for action in named for choice in action.choices or ()]


def _script(template: str, offer: str, parser: argparse.ArgumentParser) -> str:
    """Return the script of bash or zsh. ``offer`` is the command that offers words, which stand in it for ``%s``."""
    verbs, values, words = [], [], []
    for path, below in _leaves(parser):
        offered = [*_choices(below), *(name for action in _options(below) for name in action.option_strings)]
        words.append(f'        "{path}") {offer % " ".join(offered)} ;;')
        if path:
            verbs.append(f'            "{path}") verb="{path}" ;;')
        for action in _options(below):
            if action.choices:
                cases = "|".join(f'"{path}:{name}"' for name in action.option_strings)
                values.append(f"        {cases}) {offer % ' '.join(map(str, action.choices))}; return ;;")
    return template % {"verbs": "\n".join(verbs), "values": "\n".join(values), "words": "\n".join(words)}


def _bash(parser: argparse.ArgumentParser) -> str:
    return _script(_BASH, 'COMPREPLY=($(compgen -W "%s" -- "$word"))', parser)


def _zsh(parser: argparse.ArgumentParser) -> str:
    return _script(_ZSH, "compadd -- %s && return", parser)


def _fish(parser: argparse.ArgumentParser) -> str:
    lines = ["# fish completion for aiokcc: aiokcc completion fish > ~/.config/fish/completions/aiokcc.fish"]
    with_parts = " ".join(path.split()[0] for path, below in _leaves(parser) if path and _subverbs(below))
    for path, below in _leaves(parser):
        match path.split():
            case []:
                seen = "__fish_use_subcommand"
            case [verb]:  # a part may have the name of a verb, as in `pipeline status`
                outside = "" if _subverbs(below) else f"; and not __fish_seen_subcommand_from {with_parts}"
                seen = f"__fish_seen_subcommand_from {verb}{outside}"
            case [*above, part]:
                seen = f"__fish_seen_subcommand_from {' '.join(above)}; and __fish_seen_subcommand_from {part}"
        offered = map(shlex.quote, _choices(below))
        lines += [f"complete -c aiokcc -f -n {shlex.quote(seen)} -a {name}" for name in offered]
        for action in _options(below):
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in action.option_strings)
            wants = "" if action.nargs == 0 else " -r"
            given = f" -f -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            about = shlex.quote(" ".join((action.help or "").split()))
            lines.append(f"complete -c aiokcc -n {shlex.quote(seen)} {names}{wants}{given} -d {about}")
    return "\n".join(lines) + "\n"


_SCRIPTS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}


async def _run(options: argparse.Namespace) -> int:
    """Print the script of the shell."""
    from aiokcc.cli.arguments import make_parser  # which imports the table of verbs

    print(_SCRIPTS[options.shell](make_parser()), end="")
    return 0


VERB: Final = Verb(
    name="completion",
    brief="print the completion of a shell: bash, zsh or fish",
    usage="bash|zsh|fish",
    arguments=(argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish"),),
    run=_run,
    store=StoreUse.NONE,
    description="""\
Print a script by which your shell completes the verbs and options of aiokcc.
""",
    epilog="""\
examples:
  source <(aiokcc completion bash)
  source <(aiokcc completion zsh)
  aiokcc completion fish | source
""",
)
