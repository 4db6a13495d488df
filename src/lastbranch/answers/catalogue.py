"""All declared tables, for docs/reference/answers.md."""

from __future__ import annotations

from .branches import BRANCHES, SITES
from .call_partners import CALLEES, CALLERS
from .call_stacks import STACKS
from .capture_facts import FACTS, FINDINGS, MODULES
from .columns import TableKind
from .differences import DIFFERENCES
from .function_code import ARCS, BLOCKS, COSTLY, EDGES, INSTRUCTIONS, LOOPS, TARGETS
from .function_code import LINES as LINES_OF_FUNCTION
from .functions import FUNCTIONS, LINES
from .live_functions import LIVE_FUNCTIONS
from .misprediction_costs import MISPREDICTIONS
from .store_lists import SATURATION, STORE_LISTS
from .stored_counts import STORED_FUNCTIONS
from .weights import WEIGHTS

__all__ = ["TABLE_KINDS"]

TABLE_KINDS: tuple[TableKind, ...] = (
    FUNCTIONS,
    LINES,
    *WEIGHTS.values(),
    MISPREDICTIONS,
    BRANCHES,
    SITES,
    CALLERS,
    CALLEES,
    INSTRUCTIONS,
    BLOCKS,
    LOOPS,
    EDGES,
    ARCS,
    TARGETS,
    LINES_OF_FUNCTION,
    COSTLY,
    LIVE_FUNCTIONS,
    STORED_FUNCTIONS,
    *DIFFERENCES.values(),
    STACKS,
    FACTS,
    MODULES,
    FINDINGS,
    *STORE_LISTS.values(),
    SATURATION,
)
