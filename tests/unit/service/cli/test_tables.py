from dragoman.service.cli.tables import table


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    rows = [("model", "en-fr"), ("", ""), ("to", "fr")]
    assert table(rows).splitlines() == ["model  en-fr", "", "to     fr"]


def test_numbers_are_aligned_right() -> None:
    rows = [("lanes", "tokens/s"), ("1", "345"), ("16", "123456789")]
    assert table(rows, align=">").splitlines() == ["lanes   tokens/s", "    1        345", "   16  123456789"]


def test_no_rows_give_an_empty_table() -> None:
    assert table([]) == ""
