"""What the reference takes from the code: options as tables, and the command line.

Nothing here knows an option or a command by name, so the pages cannot say what the code does not.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.errors import ExtensionError

from airflow_provider_lance.cli.command_spec import Argument, Command
from airflow_provider_lance.cli.commands import ABOUT, COMMANDS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_BULLET = re.compile(r"- (?P<names>``\w+``(?:, ``\w+``)*): (?P<text>.*)")


def options_as_table(  # noqa: PLR0917 - so Sphinx calls it
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn a class of options' bullets, "- ``name``: meaning", into a table with the defaults.

    :raises ExtensionError: the bullets and the options are not the same names.
    """
    if what != "class" or not dataclasses.is_dataclass(obj):
        return
    fields = {item.metadata.get("name"): item for item in dataclasses.fields(obj)}
    bullets = list(_bullets(lines))
    if not bullets or None in fields:
        return
    named = [each for names, _ in bullets for each in names]
    if sorted(named) != sorted(fields):
        raise ExtensionError(f"{name}: the docstring has {sorted(named)}, not {sorted(fields)}")
    start = next(n for n, line in enumerate(lines) if line.startswith("- "))
    del lines[start:]
    lines += [".. list-table::", "   :header-rows: 1", "   :widths: 28 22 50", ""]
    lines += ["   * - option", "     - default", "     - meaning"]
    for names, text in bullets:
        lines += ["   * - " + ", ".join(f"``{each}``" for each in names)]
        defaults = [found for each in names if (found := _default(fields[each]))]
        lines += ["     - " + (", ".join(defaults) or "–")]
        lines += ["     - " + text]
    lines += [""]


def _bullets(lines: list[str]) -> Iterator[tuple[list[str], str]]:
    """Yield names and meaning of each bullet; a bullet may go on in indented lines."""
    whole: list[str] = []
    for line in lines:
        if line.startswith("- "):
            whole.append(line)
        elif whole and line.startswith("  "):
            whole[-1] += " " + line.strip()
    for each in whole:
        if found := _BULLET.fullmatch(each):
            text = found["text"]
            yield re.findall(r"\w+", found["names"]), text[0].upper() + text[1:]


def _default(item: dataclasses.Field[Any]) -> str:
    """Return an option's default as a user would write it, empty for nothing."""
    value = item.default
    if value is dataclasses.MISSING or value in ("", None, ()) or not _is_plain(value):
        return ""
    if isinstance(value, tuple):
        value = list(map(str, value))
    return f"``{str(value).lower() if isinstance(value, bool) else value}``"


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | enum.Enum | tuple)


class CommandLine(Directive):
    """Every command of ``lance-stream`` with its arguments, as Markdown."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        leaves = list(_leaves((), COMMANDS))
        shared = [
            each
            for each in leaves[0][1].arguments
            if all(each in leaf.arguments for _, leaf in leaves)
        ]
        lines = ["## Every command", "", _prose(ABOUT), "", *_table(shared)]
        for words, leaf in leaves:
            lines += _command(words, leaf, shared)
        holder = nodes.section()
        holder.document = self.state.document
        source = StringList(lines, source="airflow_provider_lance/cli/commands.py")
        self.state.nested_parse(source, self.content_offset, holder, match_titles=True)
        return holder.children


def _leaves(
    above: tuple[str, ...], commands: Iterable[Command]
) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every command that does something, with the words that name it."""
    for command in commands:
        words = (*above, command.name)
        if command.commands:
            yield from _leaves(words, command.commands)
        else:
            yield words, command


def _command(
    words: tuple[str, ...], command: Command, shared: Collection[Argument]
) -> Iterator[str]:
    about = command.description or command.help
    sentence = f"{about[0].upper()}{about[1:].rstrip('.')}."
    yield from (f"## `{' '.join(words)}`", "", _prose(sentence), "")
    yield from ("```text", _usage(words, command), "```", "")
    yield from _table(each for each in command.arguments if each not in shared)


def _table(arguments: Iterable[Argument]) -> Iterator[str]:
    yield from ("| argument | meaning |", "|---|---|")
    for argument in arguments:
        yield f"| {_form(argument, *argument.flags)} | {_prose(argument.settings['help'])} |"
    yield ""


def _prose(text: str) -> str:
    """Return a help text as Markdown: flags in backticks, which else lose a hyphen."""
    return re.sub(r"(?<!\S)--[a-z][a-z-]*", r"`\g<0>`", text).replace("|", "\\|")


def _usage(words: tuple[str, ...], command: Command) -> str:
    parts = [_one_use(argument) for argument in command.arguments if not _is_option(argument)]
    needed = [_one_use(each) for each in command.arguments if _is_option(each) and _is_needed(each)]
    return " ".join(["lance-stream", *words, *parts, *needed, "[OPTION…]"])


def _one_use(argument: Argument) -> str:
    form = _form(argument, argument.flags[-1]).strip("`")
    return f"[{form}]" if argument.settings.get("nargs") == "?" else form


def _form(argument: Argument, *flags: str) -> str:
    """Return an argument as it is typed, in backticks; the value follows the last flag."""
    settings: Mapping[str, Any] = argument.settings
    if not _is_option(argument):
        return f"`{settings['metavar']}`"
    choices = settings.get("choices")
    value = "{" + ",".join(choices) + "}" if choices else settings.get("metavar", "")
    *others, last = flags
    return ", ".join(f"`{each}`" for each in (*others, f"{last} {value}".strip()))


def _is_option(argument: Argument) -> bool:
    return argument.flags[0].startswith("-")


def _is_needed(argument: Argument) -> bool:
    return bool(argument.settings.get("required"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", options_as_table)
    app.add_directive("lance-commands", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
