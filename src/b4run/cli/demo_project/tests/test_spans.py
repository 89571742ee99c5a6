import unittest

from worklog import Span, merge, total


class Merge(unittest.TestCase):
    def test_spans_apart_stay_apart(self) -> None:
        self.assertEqual(merge([Span(600, 660), Span(0, 60)]), [Span(0, 60), Span(600, 660)])

    def test_overlapping_spans_become_one(self) -> None:
        self.assertEqual(merge([Span(0, 60), Span(30, 90)]), [Span(0, 90)])

    def test_touching_spans_become_one(self) -> None:
        self.assertEqual(merge([Span(0, 60), Span(60, 90)]), [Span(0, 90)])

    def test_a_span_inside_another_changes_nothing(self) -> None:
        self.assertEqual(merge([Span(0, 120), Span(30, 60)]), [Span(0, 120)])


class Total(unittest.TestCase):
    def test_time_counts_once(self) -> None:
        self.assertEqual(total([Span(0, 60), Span(30, 90), Span(600, 660)]), 150)

    def test_no_spans_take_no_time(self) -> None:
        self.assertEqual(total([]), 0)


class Bounds(unittest.TestCase):
    def test_a_span_lies_within_a_day(self) -> None:
        for start, end in ((-1, 5), (5, 5), (6, 5), (0, 1441)):
            with self.subTest(start=start, end=end), self.assertRaises(ValueError):
                Span(start, end)
