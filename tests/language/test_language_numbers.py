"""Numbers in running text: which are taken out, and how German writes them."""

import pytest

from ds41.language import numbers


@pytest.mark.parametrize(
    ("text", "message", "found"),
    [
        ("890 bytes", "{1} bytes", ["890"]),
        ("from 1,048,576 to 2.5", "from {1} to {2}", ["1,048,576", "2.5"]),
        ("layers 2–7, 3 each", "layers {1}–{2}, {3} each", ["2", "7", "3"]),
        ("4-bit codes of 0.5 GB", "{1}-bit codes of {2} GB", ["4", "0.5"]),
        ("ends here: 128.", "ends here: {1}.", ["128"]),
        ("(22.6, 7)", "({1}, {2})", ["22.6", "7"]),
        # Names, versions, powers, exercises and parts of longer numbers.
        ("E4M3 and V4.1-Flash on sm_75", "E4M3 and V4.1-Flash on sm_75", []),
        ("GLM-4.5 and Llama 3.1", "GLM-4.5 and Llama 3.1", []),
        ("torch 2.13.0, Python 3.11, section 2.4 and 2.4.4", "torch 2.13.0, Python 3.11, section 2.4 and 2.4.4", []),
        ("exercise 04.1", "exercise 04.1", []),
        ("PCIe 5.0 x16, 2.6e-4 of 1e6, 0x1e5", "PCIe 5.0 x16, {1} of {2}, 0x1e5", ["2.6e-4", "1e6"]),
        ("64K of 4x", "64K of 4x", []),
        ("section 7", "section {1}", ["7"]),
    ],
)
def test_numbers_are_taken_out_and_names_stay(text, message, found):
    assert numbers.take_out(text) == (message, found)
    assert numbers.put_in(message, found, str) == text


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("1,048,576", "1.048.576"),
        ("889.83", "889,83"),
        ("1,234.5", "1.234,5"),
        ("128", "128"),
        ("−0.5 %", "−0,5 %"),
        ("0.5, -1.25, 3, …", "0,5; -1,25; 3, …"),
        ("5, 7, 9", "5, 7, 9"),
        ("“0.5”", "„0,5“"),
    ],
)
def test_german_numbers(english, german):
    assert numbers.localise(english) == german


def test_places_may_change_their_order_and_repeat():
    assert numbers.put_in("{2} von {1}, also {2}", ["8.5", "1,024"], numbers.german) == "1.024 von 8,5, also 1.024"


@pytest.mark.parametrize("text", ["{3} zu viel", "{0}"])
def test_a_place_without_a_number_is_an_error(text):
    with pytest.raises(ValueError, match="place"):
        numbers.put_in(text, ["1", "2"], str)
