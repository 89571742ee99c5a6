import unittest

from worklog import format_duration, parse_duration


class ParseDuration(unittest.TestCase):
    def test_hours_and_minutes(self) -> None:
        self.assertEqual(parse_duration("1h30m"), 90)

    def test_one_unit_alone(self) -> None:
        self.assertEqual(parse_duration("2h"), 120)
        self.assertEqual(parse_duration("45m"), 45)

    def test_what_is_no_duration_is_refused(self) -> None:
        for text in ("", "soon", "h", "1d"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse_duration(text)

    def test_a_duration_with_something_around_it_is_refused(self) -> None:
        for text in ("1h30", "1h 30m", "-1h", "1d2h"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse_duration(text)


class FormatDuration(unittest.TestCase):
    def test_parts_that_are_zero_are_left_out(self) -> None:
        self.assertEqual([format_duration(minutes) for minutes in (0, 45, 120, 90)], ["0m", "45m", "2h", "1h30m"])

    def test_reading_gives_back_what_was_written(self) -> None:
        for minutes in range(0, 24 * 60, 7):
            self.assertEqual(parse_duration(format_duration(minutes)), minutes)
