"""`holdfast metrics`: the store's metrics in Prometheus' text format, on stdout.

Loaded by main when called. A worker's own metrics are served by `holdfast work --metrics-port`.
"""

from __future__ import annotations

import click

from .exits import Exit
from .session import Session, session_options


@click.command()
@session_options
def metrics(session: Session) -> int:
    """Print the store's metrics for Prometheus: backlog, waiting times, recent failures, workers, lags.

    For a scrape, mount holdfast.metrics.create(app) or use the dashboard's /metrics; for node_exporter's textfile
    collector, write this into a file.
    """
    from ..metrics import STORE_METRICS, StoreCollector, written

    with session.store() as app:
        collector = StoreCollector(app.url)
        try:
            families = list(collector.collect())
        finally:
            collector.close()
    if session.as_json:
        samples = [sample for family in families for sample in family.samples]
        session.print.document(
            {
                "metrics": [
                    {
                        "name": one.name,
                        "labels": dict(one.labels),
                        "value": one.value,
                        "help": STORE_METRICS[one.name].help,
                    }
                    for one in samples
                ]
            }
        )
    else:
        click.echo(written(families), nl=False)
    return Exit.DONE
