"""Reads metrics on standard input with the parser of Prometheus's own Python client, and writes them as JSON.

The one of OpenMetrics is strict; `text` is for the older format.
"""

import json
import sys

if sys.argv[1] == "openmetrics":
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
else:
    from prometheus_client.parser import text_string_to_metric_families

text = sys.stdin.buffer.read().decode("utf-8")
families = text_string_to_metric_families(text)
json.dump(
    [
        {
            "name": family.name,
            "type": family.type,
            "help": family.documentation,
            "samples": [{"name": s.name, "labels": s.labels, "value": s.value} for s in family.samples],
        }
        for family in families
    ],
    sys.stdout,
)
