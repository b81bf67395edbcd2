import click
import pytest

from benchmarks.speed.reference import MARGIN, agreement, check, check_all, equal_rows
from dragoman.model.greedy import Output


def output(tokens: tuple[int, ...], margins: tuple[float, ...] | None = None) -> Output:
    return Output(tokens, (0.0,) * len(tokens), margins or (1.0,) * len(tokens), "length")


def test_equal_tokens_are_all_compared() -> None:
    assert check("peer", [[5, 6, 7], [8]], [output((5, 6, 7)), output((8,))]) == 4


def test_a_row_may_differ_from_its_first_close_step_on() -> None:
    close = output((5, 6, 7, 8), (1.0, 1.0, MARGIN / 2, 1.0))
    assert check("peer", [[5, 6, 9, 9, 9]], [close]) == 2


def test_an_earlier_difference_names_contender_and_row() -> None:
    close = output((5, 6, 7), (1.0, 1.0, MARGIN / 2))
    with pytest.raises(click.ClickException, match="peer: row 1 differs from the reference from token 1"):
        check("peer", [[5], [5, 9, 7]], [output((5,)), close])


def test_a_shorter_output_differs() -> None:
    with pytest.raises(click.ClickException, match="from token 2 on"):
        check("peer", [[5, 6]], [output((5, 6, 7))])


def test_only_float32_is_compared_with_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    check_all({("peer", "int8"): [[9]], ("peer", "float32"): [[5]]}, [output((5,))], "batch 1")
    assert capsys.readouterr().err == "batch 1: peer: 1 of 1 float32 tokens compared, all equal\n"
    with pytest.raises(click.ClickException):
        check_all({("peer", "float32"): [[9]]}, [output((5,))], "batch 1")


def test_only_identical_rows_are_counted_as_equal() -> None:
    assert equal_rows([[1, 2], [3], [4]], [[1, 2], [3, 3], [5]]) == 1


def test_agreement_is_a_share_of_the_longer_row() -> None:
    assert agreement([[1, 2], [3]], [[1, 9], [3, 3]]) == 0.5
