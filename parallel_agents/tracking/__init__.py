"""Record what a run does: callbacks that log, count, draw and store. They never change a result.

    callbacks        the interface `Callback`, and a list of callbacks that isolates failures
    logs             structured log records with run, role, agent, version, thread and process
    metrics          one JSON line per epoch and round, read back as arrays, and a CSV table of them
    services         the same metrics for TensorBoard, Weights & Biases and MLflow, if they are installed
    progress         a live bar on a terminal, or a plain line every few seconds
    timeline         spans of all threads and processes, as a trace for Perfetto; what such a trace says
    run_folder       the folder that holds all files of a run
    jsonl            append-only JSON lines files with rotation
    statistics       interquartile mean, bootstrap and t-intervals
    plots            panels (charts, tables, pictures) as plain values; drawn as PNG, SVG, CSV, GIF and MP4
    metric_bins      metrics of any length in bounded memory
    run_view         a run folder as panels, or several with statistics over seeds
    live_page        a server that shows them in a browser; `page/` holds its files
    report           one HTML file that shows them

To add a sink, such as a database, write a class with the five methods of `tracking.callbacks.Callback`.
"""
