"""Measures Holdfast against its peers and the bare store. Used by bench/run, bench/report and bench/guard."""
