import unittest

from roman import to_roman


class ToRoman(unittest.TestCase):
    def test_symbols_add_up(self) -> None:
        self.assertEqual([to_roman(number) for number in (1, 3, 8, 1666)], ["I", "III", "VIII", "MDCLXVI"])

    def test_a_smaller_symbol_before_a_larger_one_is_taken_away(self) -> None:
        self.assertEqual([to_roman(number) for number in (4, 9, 40, 90, 400, 900)], ["IV", "IX", "XL", "XC", "CD", "CM"])

    def test_years(self) -> None:
        self.assertEqual([to_roman(number) for number in (1994, 2026)], ["MCMXCIV", "MMXXVI"])

    def test_what_has_no_numeral_is_refused(self) -> None:
        for number in (0, -1, 4000):
            with self.subTest(number=number), self.assertRaises(ValueError):
                to_roman(number)


if __name__ == "__main__":
    unittest.main()
