"""Answers to the questions that people ask of captures, as tables: what verbs, `top`, the viewer, stores of counts and
notebooks show.

`columns` declares what a column is, `table` holds rows of declared columns; each other module answers one question and
declares its columns. A new column is one `Column` in the declaration of its table: it is in every form of the table,
and in docs/reference/answers.md.
"""
