"""Payloads of events: field types (`types`), layouts made of them (`layouts`), many payloads as columns
(`payload_columns`).

Layouts come from manifests (`manifest`, `manifest_xml`), from TraceLogging schemas (`tracelogging`), and for the
kernel's events from the tables of `kernel.layouts`.
"""
