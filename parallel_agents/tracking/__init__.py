"""Tell: what a run did, while it runs and afterwards. Tracking listens and never steers.

    listeners    many listeners as one; one that fails is reported and dropped
    logs         structured records with run, role, agent, version, thread and process
    metrics      one JSON line per epoch and round, and the way back to arrays
    tables       the same as CSV, one line per epoch and agent
    tensorboard  the same for TensorBoard, where that is installed
    progress     a live bar on a terminal, a plain line now and then elsewhere
    timeline     who did what when, as a trace for Perfetto
    runfolder    where all of it lies
    statistics   interquartile mean, bootstrap and t-intervals
    plots        learning curves
    lines        files that grow line by line, bounded
    files        files that are replaced, all or nothing

Any object with the five methods of `protocols.Listener` is a sink; a further one (a page, a database)
is one more entry in the list given to `Listeners`.
"""
