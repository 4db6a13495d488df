"""Counts and views: branches, ranges, weights, names, call graphs, and one function in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .annotation import Annotation, annotate
    from .availability import how_to_record, why_no_ranges, why_no_stacks
    from .block_graph import BlockEdges, BlockGraph, EdgeKind, block_graph
    from .bound_pairs import Bound
    from .callgraph import CallTable, callees, callers
    from .count_stacks import Counted, count_stacks
    from .count_tables import (
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
    from .estimation import estimate_executions
    from .executions import Estimate, basis_of
    from .flow import Blocks, Edges, Flow
    from .functions import NameTable, fold, names
    from .loops import Loop
    from .naming import Label, Namer, Place, find_functions
    from .stacks import CallStacks, call_stacks, why_no_call_stacks

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
    "annotation": "Annotation annotate",
    "availability": "how_to_record why_no_ranges why_no_stacks",
    "block_graph": "BlockEdges BlockGraph EdgeKind block_graph",
    "bound_pairs": "Bound",
    "callgraph": "CallTable callees callers",
    "count_stacks": "Counted count_stacks",
    "count_tables": "BranchTable Key RangeTable SiteTable WeightTable branches merge_processes ranges sites weights "
    "without_binary",
    "estimation": "estimate_executions",
    "executions": "Estimate basis_of",
    "flow": "Blocks Edges Flow",
    "functions": "NameTable fold names",
    "loops": "Loop",
    "naming": "Label Namer Place find_functions",
    "stacks": "CallStacks call_stacks why_no_call_stacks",
})  # fmt: skip
