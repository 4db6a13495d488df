"""Payloads of events: types of fields (`types`), layouts of events made of them (`layouts`), and where these come from:
manifests (`manifest`, `manifest_xml`) and TraceLogging. Layouts of the kernel's events are in `kernel`."""
