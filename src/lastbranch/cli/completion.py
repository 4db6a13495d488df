"""``lastbranch completion``."""

from __future__ import annotations

import click

VARIABLE = "_LASTBRANCH_COMPLETE"
"""Set by the script when a shell asks for completions."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that completes verbs, options and file names.

    \b
    bash:  eval "$(lastbranch completion bash)"     in ~/.bashrc
    zsh:   eval "$(lastbranch completion zsh)"      in ~/.zshrc
    fish:  lastbranch completion fish > ~/.config/fish/completions/lastbranch.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # click has these three
    click.echo(made(click.get_current_context().find_root().command, {}, "lastbranch", VARIABLE).source())
