"""Counts and views: branches, ranges, weights, names, call graphs, and one function in full."""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "comparison": "CodeLocation Difference Matcher Thing compare compare_sums",
        "counting.availability": "how_to_record why_no_ranges why_no_stacks",
        "counting.bound_pairs": "BoundPairs",
        "counting.count_stacks": "StackCounts count_stacks",
        "counting.count_tables": "BranchTable Key RangeTable SiteTable WeightTable branches merge_processes ranges "
        "sites weights without_binary",
        "executions.estimate": "Estimate basis_of",
        "executions.markov_chain": "estimate_executions",
        "function.annotation": "Annotation annotate",
        "function.flow": "BlockEdges BlockGraph Blocks EdgeKind Edges Flow block_graph",
        "function.loops": "Loop",
        "naming": "Label Namer Place View find_functions place_of",
        "samples": "BoundRows TYPE_NAMES filtered_batches period_of recorded_address",
        "sources": "Sources",
        "stacks.call_stacks": "CallStacks call_stacks why_no_call_stacks",
        "stacks.callgraph": "CallTable callees callers",
        "stacks.functions": "NameTable fold names",
        "summary": "summarize",
    },
)
