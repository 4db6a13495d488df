"""Settings of a session besides its request, and the sources it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ...flags import EnableFlag, Info, V2Option, hook_ids
from ...information import CONFIGURE_LBR
from ...properties import SessionRequest
from ...status import EtwError, Status
from ..enable_map import normalised_masks
from ..protocol import pack
from ..session_registry import Registry

__all__ = ["Settings"]


_ONCE = frozenset({Info.PMC_EVENT_LIST_INFO, Info.PMC_COUNTER_LIST_INFO})
"""Classes that can be set only once for a session (`information`)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Immutable: a session changes from one to the next."""

    request: SessionRequest
    targets: tuple[int, ...]
    """The targets whose branches software records, as `information.TARGETS` counts."""
    registry: Registry
    masks: tuple[int, ...] = ()
    """Eight words of PERFINFO_GROUPMASK."""
    information: dict[Info, Any] = field(default_factory=dict)
    """The values that TraceSetInformation set, by class."""

    def __post_init__(self) -> None:
        if not self.masks:
            object.__setattr__(self, "masks", _masks(self.request.enable_flags))

    def updated(self, request: SessionRequest) -> Settings:
        """After an update. Changed EnableFlags change the groups that they name."""
        if request.enable_flags == self.request.enable_flags:
            return replace(self, request=request)
        before, after = _masks(self.request.enable_flags), _masks(request.enable_flags)
        masks = tuple(now & ~old | new for now, old, new in zip(self.masks, before, after, strict=True))
        return replace(self, request=request, masks=masks)

    def with_information(self, info: Info, value: Any) -> Settings:
        """After TraceSetInformation. Raises `EtwError` 170 for a class that can be set only once and was."""
        call = "TraceSetInformation"
        if info in _ONCE and info in self.information:
            raise EtwError(call, Status.BUSY, f"{info.name} was set for this session")
        information = {**self.information, info: value}
        if info == Info.SOFTWARE_BRANCH_TARGETS_INFO:
            return self._with_targets(tuple(value))
        if info in (Info.LBR_CONFIGURATION_INFO, Info.LBR_EVENT_LIST_INFO):
            lbr = {**self.information, info: value}
            self._check_lbr(lbr.get(Info.LBR_CONFIGURATION_INFO, 0), lbr.get(Info.LBR_EVENT_LIST_INFO, ()))
        if info != Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO:
            return replace(self, information=information)
        self.check_system(call)
        masks = tuple(normalised_masks(value))
        return replace(self, masks=masks, request=replace(self.request, enable_flags=value[0] if value else 0))

    def check_system(self, call: str) -> None:
        """Raise `EtwError` 87 unless the session is a system logger: only system loggers have groups of kernel
        events."""
        if not self.request.system:
            raise EtwError(call, Status.INVALID_PARAMETER, "groups of kernel events are for system loggers")

    def with_lbr(self, flags: int, events: list[tuple[UUID, int]]) -> Settings:
        """After TraceConfigureLastBranchRecord. `EtwError` 50, 87 or 1292 as `check_configuration` says."""
        hooks = hook_ids(events)
        self._check_lbr(flags, hooks, len(events))
        made = {Info.LBR_CONFIGURATION_INFO: flags, Info.LBR_EVENT_LIST_INFO: hooks}
        return replace(self, information={**self.information, **made})

    def _check_lbr(self, flags: int, hooks: Sequence[int], count: int | None = None) -> None:
        from ..lbr_configuration import check_configuration, needs_tracepoints

        check_configuration(flags, hooks, len(hooks) if count is None else count)
        if needs_tracepoints(hooks):
            from ..sources.call_branches import check_tracepoints

            check_tracepoints(hooks, CONFIGURE_LBR)
        if hooks and not self.request.system:
            raise EtwError(CONFIGURE_LBR, Status.NOT_SUPPORTED, "only system loggers have events that trigger here")

    def _with_targets(self, targets: tuple[int, ...]) -> Settings:
        from ..lbr_configuration import check_targets

        self.check_system("TraceSetInformation")
        check_targets(targets)
        return replace(self, targets=targets)

    # -- sources

    @property
    def _hooks(self) -> tuple[int, ...]:
        return tuple(self.information.get(Info.LBR_EVENT_LIST_INFO, ()))

    def commands(self, address: str) -> dict[str, list[str]]:
        """Role -> command of the sources that the session needs. They connect to ``address``."""
        if not self.request.system:
            return {}
        from .. import lbr_configuration as lbr
        from .. import sources
        from ..profile_sources import source_settings

        found, counted = {}, source_settings(self.registry).sources
        if sources.needed(self.request, self.masks, counted):
            found["kernel"] = sources.argv(address)
        if lbr.needed(self._hooks):
            found["branch"] = lbr.argv(address)
        return found

    def header_events(self, time: int) -> list[bytes]:
        """Encoded events for the header buffer of a system logger that begins at ``time``: its groups."""
        if not self.request.system:
            return []
        from ....formats.etl import encode_event
        from ..sources.recorder import mask_event

        return [encode_event(mask_event(self.masks, time))]

    def configuration(self) -> bytes:
        """The packed `SourceConfiguration`; empty for a session without sources."""
        if not self.request.system:
            return b""
        from .. import lbr_configuration as lbr
        from ..profile_sources import source_settings
        from ..sources.configuration import SourceConfiguration

        def hooks(info: Info) -> tuple[int, ...]:
            return tuple(hook_ids(self.information.get(info, ())))

        profile = source_settings(self.registry)
        trigger = lbr.active_trigger(self._hooks, self.masks, profile.sources)
        calls = lbr.active_call_triggers(self._hooks, self.masks)
        return pack(
            SourceConfiguration(
                masks=self.masks,
                sysconfig=not self.request.enable_flags & EnableFlag.NO_SYSCONFIG,
                kernel_stacks=not self.request.options & V2Option.EXCLUDE_KERNEL_STACK,
                clock=self.request.clock,
                stack_hooks=hooks(Info.STACK_TRACING_INFO),
                pmc_sources=tuple(profile.sources),
                pmc_hooks=hooks(Info.PMC_EVENT_LIST_INFO),
                pmc_counters=tuple(self.information.get(Info.PMC_COUNTER_LIST_INFO, ())),
                lbr_flags=self.information.get(Info.LBR_CONFIGURATION_INFO, 0),
                lbr_hooks=self._hooks if lbr.has_hardware() else (),  # else interrupts of counters trigger nothing
                targets=self.targets if trigger or calls else (),
                branch_hook=trigger,
                call_hooks=calls,
                intervals=profile.intervals,
            )
        )


def _masks(enable_flags: int) -> tuple[int, ...]:
    return tuple(normalised_masks([enable_flags]))
