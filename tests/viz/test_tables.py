"""Tables say the same in HTML and in text, and align what is a number."""

from fractions import Fraction

import pytest

from ds41.viz.tables import summary_row, table


def test_numbers_are_right_aligned_and_words_are_not():
    made = table("Records", ["record", "bytes", "share"], [["main", 288, "80.9 %"], ["index <key>", 1068, "19.1 %"]])
    assert made.numeric == (1, 2)
    page = made._repr_html_()
    assert '<td class="ds-number">1,068</td>' in page
    assert "index &lt;key&gt;" in page
    assert repr(made).splitlines()[1:] == [
        "record       bytes   share",
        "main           288  80.9 %",
        "index <key>  1,068  19.1 %",
    ]


def test_whole_fractions_are_shown_in_full():
    rows = [["a", Fraction(47185920), Fraction(7029, 2), 0.0266, float("inf")]]
    shown = ("a", "47,185,920", "3,514.5", "0.0266", "inf")
    assert table("Sizes", ["x", "a", "b", "c", "d"], rows).rows == (shown,)


def test_a_title_with_quotes_stays_inside_its_attribute():
    page = table('The "890"', ["a"], [[1]])._repr_html_()
    assert 'aria-label="The &quot;890&quot;"' in page


def test_a_number_has_at_most_a_unit():
    numbers = ["−2.9 %", "+61.8 %", "1.56 GB", "0 (compute)", "890 B", "3.95", "1e-3", "—", ""]
    words = ["4 bits, scale per 16", "163,840 entries × 288", "2 per latent", "FP4"]
    header = [str(i) for i in range(len(numbers) + len(words))]
    assert table("t", header, [numbers + words]).numeric == tuple(range(len(numbers)))


def test_a_ragged_row_is_refused():
    with pytest.raises(ValueError, match=r"2 columns; rows have \[1, 2\]"):
        table("t", ["a", "b"], [[1, 2], [3]])


def test_the_first_column_is_aligned_like_its_head():
    page = table("Contexts", ["context", "kept"], [["4K", 10], ["64K", 20]])._repr_html_()
    assert '<th scope="col" class="ds-number">context</th>' in page
    assert '<th scope="row" class="ds-number">4K</th>' in page


def test_the_summary_row_names_its_chapter_and_wraps_its_sentences():
    page = summary_row("04", "c", "288 B a record", "5 kB", "v")._repr_html_()
    assert "Chapter 04 in one row" in page
    assert "<td>288 B a record</td>" in page
