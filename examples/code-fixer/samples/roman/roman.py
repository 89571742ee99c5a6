"""Roman numerals from 1 to 3999."""

_SYMBOLS = (
    (1000, "M"),
    (500, "D"),
    (100, "C"),
    (50, "L"),
    (10, "X"),
    (5, "V"),
    (1, "I"),
)


def to_roman(number: int) -> str:
    """Return the numeral of a number.

    Raises:
        ValueError: it is not between 1 and 3999.
    """
    if not 1 <= number <= 3999:
        raise ValueError(f"no Roman numeral: {number}")
    numeral = ""
    for value, symbol in _SYMBOLS:
        count, number = divmod(number, value)
        numeral += symbol * count
    return numeral
