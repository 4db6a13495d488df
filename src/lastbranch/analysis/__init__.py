"""Counts and views: branches, ranges, weights, names, call graphs, and one function in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .counting.availability import how_to_record, why_no_ranges, why_no_stacks
    from .counting.bound_pairs import Bound
    from .counting.count_stacks import Counted, count_stacks
    from .counting.count_tables import (
        BranchTable,
        Key,
        RangeTable,
        SiteTable,
        WeightTable,
        branches,
        merge_processes,
        ranges,
        sites,
        weights,
        without_binary,
    )
    from .executions.estimate import Estimate, basis_of
    from .executions.from_stacks import estimate_executions
    from .function.annotation import Annotation, annotate
    from .function.block_graph import BlockEdges, BlockGraph, EdgeKind, block_graph
    from .function.flow import Blocks, Edges, Flow
    from .function.loops import Loop
    from .naming import Label, Namer, Place, find_functions
    from .stacks.call_stacks import CallStacks, call_stacks, why_no_call_stacks
    from .stacks.callgraph import CallTable, callees, callers
    from .stacks.functions import NameTable, fold, names

__all__ = [
    "Annotation",
    "BlockEdges",
    "BlockGraph",
    "Blocks",
    "Bound",
    "BranchTable",
    "CallStacks",
    "CallTable",
    "Counted",
    "EdgeKind",
    "Edges",
    "Estimate",
    "Flow",
    "Key",
    "Label",
    "Loop",
    "NameTable",
    "Namer",
    "Place",
    "RangeTable",
    "SiteTable",
    "WeightTable",
    "annotate",
    "basis_of",
    "block_graph",
    "branches",
    "call_stacks",
    "callees",
    "callers",
    "count_stacks",
    "estimate_executions",
    "find_functions",
    "fold",
    "how_to_record",
    "merge_processes",
    "names",
    "ranges",
    "sites",
    "weights",
    "why_no_call_stacks",
    "why_no_ranges",
    "why_no_stacks",
    "without_binary",
]

__getattr__ = lazy_names(__name__, {
    "counting.availability": "how_to_record why_no_ranges why_no_stacks",
    "counting.bound_pairs": "Bound",
    "counting.count_stacks": "Counted count_stacks",
    "counting.count_tables": "BranchTable Key RangeTable SiteTable WeightTable branches merge_processes ranges sites "
    "weights without_binary",
    "executions.estimate": "Estimate basis_of",
    "executions.from_stacks": "estimate_executions",
    "function.annotation": "Annotation annotate",
    "function.block_graph": "BlockEdges BlockGraph EdgeKind block_graph",
    "function.flow": "Blocks Edges Flow",
    "function.loops": "Loop",
    "naming": "Label Namer Place find_functions",
    "stacks.call_stacks": "CallStacks call_stacks why_no_call_stacks",
    "stacks.callgraph": "CallTable callees callers",
    "stacks.functions": "NameTable fold names",
})  # fmt: skip
