"""``lastbranch session merge``."""

from __future__ import annotations

import click

from .options import check_new, complete_file, complete_folder, force_option
from .output import print_damage

_SHOWN = 5


@click.command("merge")
@click.argument("paths", metavar="IN... OUT", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--compress", is_flag=True, help="Compress buffers (XPRESS). [default: as the first IN]")
@click.option("--no-images", is_flag=True, help="Do not look for the binaries of images.")
@click.option(
    "--symfs", metavar="DIR", shell_complete=complete_folder, help="Look for binaries at DIR + their full path."
)
@click.option(
    "--symbols",
    "folders",
    metavar="DIR",
    shell_complete=complete_folder,
    multiple=True,
    help="Look for binaries by identity in DIR, too.",
)
@force_option
def command(
    paths: tuple[str, ...], compress: bool, no_images: bool, symfs: str | None, folders: tuple[str, ...], force: bool
) -> int:
    """Merge logs of sessions into one, with the identities of images.

    What CreateMergedTraceFile and xperf -merge do: OUT has the events of all inputs in one time line and, for each
    image whose binary is found here, what tells it apart (the PDB of a PE, the load segments of an ELF file), so that
    the log can be read on any machine. Only a binary that is the recorded one is used: same time stamp and size, same
    build id.
    """
    from ..etw.merging import MergeFlag, create_merged_trace_file
    from ..model import visible

    if len(paths) < 2:
        raise click.UsageError("give at least one input and, last, the output")
    *inputs, output = paths
    check_new(output, force, "OUT")
    flags = MergeFlag.DEFAULT & ~(MergeFlag.IMAGEID if no_images else 0)
    flags |= MergeFlag.COMPRESS_TRACE if compress else 0
    done = create_merged_trace_file(output, inputs, flags, symfs=symfs, folders=folders)
    if len(inputs) > 1 and done.boots > 1:
        click.echo("note: the inputs are of different uptimes: process ids may mean different processes", err=True)
    if done.images:
        click.echo(f"{done.found} of {done.images - done.known} unknown images identified", err=True)
    for name, reason in list(done.missing.items())[:_SHOWN]:
        click.echo(f"note: {visible(name)}: {reason}", err=True)
    if len(done.missing) > _SHOWN:
        click.echo(f"note: {len(done.missing) - _SHOWN} more images without a binary", err=True)
    code = print_damage(done.damage)
    if done.events:
        click.echo(f"{done.events} events written to {visible(output)}, {done.added} of them added", err=True)
    return code
