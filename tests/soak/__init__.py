"""The soak: half an hour of faults per store, judged by the handlers' own locks and journal. Not part of CI."""
