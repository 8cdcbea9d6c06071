"""Tab completion of both spellings, for the console script and for `python -m framework.run`."""

from __future__ import annotations

import os
import re

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.config_search_path import ConfigSearchPath

from framework.config.hydra.compose import CONFIG_NAME, HYDRA_ERRORS, global_hydra
from framework.config.hydra.overrides import normalise
from framework.errors import ConfigError, FrameworkError, did_you_mean

_COMMAND = re.compile(r"^\s*(?:\S*python[\d.]*\s+-m\s+framework\.run|\S+)(?:\s+|$)")
_FLAGS = ("--cfg", "--config-dir", "--help", "--hydra-help", "--info", "--multirun", "--resolve", "--version")
_INSTALL = r"""_kvcache_framework() {
    local line="${COMP_LINE:0:$COMP_POINT}" helper
    case "$line" in
        *python*" -m framework.run "*) helper="${COMP_WORDS[0]} -m framework.run" ;;
        *python*) return ;;
        *) helper="${COMP_WORDS[0]}" ;;
    esac
    local IFS=$'\n' word="${line##* }"
    COMPREPLY=($(COMP_LINE="$line" eval "$helper -sc query=bash" 2>/dev/null))
    local before="${word%"${word##*[=:]}"}"
    if [[ "$COMP_WORDBREAKS" == *"="* && -n "$before" ]]; then
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
}
complete -o nospace -o default -F _kvcache_framework kvcache-framework python python3
"""
"""What `eval "$(kvcache-framework -sc install=bash)"` installs."""
_UNINSTALL = "complete -r kvcache-framework python python3 2>/dev/null; unset -f _kvcache_framework\n"


def complete(request: str, path: ConfigSearchPath) -> str:
    """The text to print for `-sc REQUEST`: `install=bash`, `uninstall=bash` or `query=bash`.

    Raises:
        ConfigError: another request.
    """
    answers = {"install=bash": _INSTALL, "uninstall=bash": _UNINSTALL}
    if request in answers:
        return answers[request]
    if request == "query=bash":
        return "\n".join(choices(os.environ.get("COMP_LINE", ""), path))
    allowed = [*answers, "query=bash"]
    raise ConfigError(f"-sc takes one of {', '.join(allowed)}, found {request!r}{did_you_mean(request, allowed)}")


def choices(line: str, path: ConfigSearchPath) -> list[str]:
    """What may follow the last word of a shell's line, in the user's own spelling; empty when the line is wrong."""
    words = _COMMAND.sub("", line).split(" ")
    words, word = [entry for entry in words[:-1] if entry], words[-1]
    if word.startswith("-"):
        return [flag for flag in _FLAGS if flag.startswith(word)]
    sign = re.match(r"^\+*", word)
    assert sign is not None
    try:
        earlier = normalise([entry for entry in words if "=" in entry])
        with global_hydra(path) as hydra:
            found = BashCompletion(hydra.config_loader)._query(CONFIG_NAME, " ".join([*earlier, word[sign.end() :]]))
    except (FrameworkError, *HYDRA_ERRORS, SystemExit):
        return []
    return [sign[0] + entry for entry in found]
