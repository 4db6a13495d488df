"""``lastbranch help`` and ``completion``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .group import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


COMPLETION_VARIABLE = "_LASTBRANCH_COMPLETE"
"""Set by the script when a shell asks for completions."""


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
