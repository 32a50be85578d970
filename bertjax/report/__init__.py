"""One self-contained HTML page about one run or several: `python -m bertjax.report`."""
