import unittest

from worklog import read_entries, report

LOG = """\
day,start,length
2026-03-03,09:00,2h
2026-03-02,08:30,4h
2026-03-02,09:00,45m
2026-03-02,13:00,1h15m
"""


class Report(unittest.TestCase):
    def test_each_day_has_its_hours(self) -> None:
        self.assertEqual(report(read_entries(LOG.splitlines())), ["2026-03-02  5h15m", "2026-03-03  2h"])

    def test_a_bad_length_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            read_entries(["day,start,length", "2026-03-02,08:30,4h-ish"])
