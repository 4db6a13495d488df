"""Groups of verbs, loaded on demand and listed with uncut summaries, and the verbs about verbs: ``help`` and
``completion``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["COMPLETION_VARIABLE", "Group", "completion", "help", "summary"]

COMPLETION_VARIABLE = "_LASTBRANCH_COMPLETE"
"""Set by the script when a shell asks for completions."""


class Group(click.Group):
    """``lazy`` maps verbs to modules of this package; ``module:function`` where the function is not ``command``."""

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.lazy[cmd_name].partition(":")
        found: click.Command = getattr(import_module(f".{module}", __package__), function or "command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        if os.path.isfile(name) and "info" in self.list_commands(ctx):
            meant = f" To look at a capture: {ctx.command_path} info {name}"
        else:
            meant = _did_you_mean(get_close_matches(name, self.list_commands(ctx)))
        raise click.UsageError(f"No such command {name!r}." + meant, ctx)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name in _INPUT and error.ctx is not None and _takes_files(error.ctx.command):
                name = error.ctx.command_path
                raise click.UsageError(f"{error.format_message()} A file needs none: {name} FILE", error.ctx) from None
            raise _with_one_dash(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(command)) for name, command in named if command])


_INPUT = ("-i", "--input")
"""What perf has before the name of a capture."""


def _takes_files(command: click.Command) -> bool:
    return any(isinstance(param, click.Argument) and "FILE" in (param.metavar or "") for param in command.params)


def summary(command: click.Command) -> str:
    """The first sentence of what ``command`` says of itself."""
    text = command.short_help or (command.help or "").partition("\n\n")[0]
    sentence, dot, _ = " ".join(text.split()).partition(". ")
    return sentence + dot.rstrip()


def _with_one_dash(error: click.NoSuchOption) -> click.NoSuchOption:
    """``-limit`` is ``-l`` to the parser: the option as it was written, with the one that was meant."""
    given = [w.partition("=")[0] for w in sys.argv[1:] if w.startswith(error.option_name) and not w.startswith("--")]
    if not given or len(given[0]) < 3 or error.ctx is None:
        return error
    from difflib import get_close_matches

    known = [name for param in error.ctx.command.params for name in param.opts if name.startswith("--")]
    near = get_close_matches(f"-{given[0]}", known, cutoff=0.7)
    return click.NoSuchOption(given[0], possibilities=near, ctx=error.ctx) if near else error


def _did_you_mean(near: list[str]) -> str:
    *some, last = map(repr, near) if near else ("",)
    return f" Did you mean {', '.join(some)}{' or ' * bool(some)}{last}?" if near else ""


# -- lastbranch help, lastbranch completion


def _verbs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    root = ctx.find_root()
    return [item for item in root.command.shell_complete(root, incomplete) if not item.value.startswith("-")]


@click.command()
@click.argument("words", metavar="[VERB]...", nargs=-1, shell_complete=_verbs)
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a verb, as VERB --help does.

    `lastbranch help session start` shows the help of a verb within a verb. Without VERB, it lists the verbs.
    """
    at = ctx.find_root()
    for word in words:
        if not isinstance(at.command, Group):
            raise click.UsageError(f"{at.command_path} has no verbs of its own: no {word!r}", ctx)
        _, found, _ = at.command.resolve_command(at, [word])
        if found is None:
            raise click.UsageError(f"No such command {word!r}.", at)
        at = click.Context(found, info_name=word, parent=at)
    click.echo(at.get_help())


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes verbs, options and file names.

    \b
    bash:  eval "$(lastbranch completion bash)"     in ~/.bashrc
    zsh:   eval "$(lastbranch completion zsh)"      in ~/.zshrc
    fish:  lastbranch completion fish > ~/.config/fish/completions/lastbranch.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # click has these three
    click.echo(made(click.get_current_context().find_root().command, {}, "lastbranch", COMPLETION_VARIABLE).source())
