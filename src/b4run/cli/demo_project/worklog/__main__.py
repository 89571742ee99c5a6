"""`python3 -m worklog FILE`: print the hours of each day."""

import sys

from worklog.report import read_entries, report

with open(sys.argv[1], encoding="utf-8", newline="") as file:
    print("\n".join(report(read_entries(file))))
