"""The values that hyper-connections move, against the report's table."""

import dataclasses

from ds41 import ModelConfig
from ds41.mhc_traffic import IMPLEMENTATIONS, SEPARATE, SINGLE_PASS, TWO_PASSES, sites


def test_traffic():
    flash = ModelConfig.flash()
    assert [implementation.formula for implementation in IMPLEMENTATIONS] == ["(4n + 4)d", "(3n + 2)d", "(2n + 2)d"]
    assert [implementation.values(flash) for implementation in IMPLEMENTATIONS] == [102_400, 71_680, 51_200]
    assert SEPARATE.values(flash) == 2 * SINGLE_PASS.values(flash)
    assert (TWO_PASSES.reads(4), TWO_PASSES.writes(4)) == (9, 5)
    assert (SINGLE_PASS.reads(4), SINGLE_PASS.writes(4)) == (5, 5)
    assert sites(flash) == 80
    assert SINGLE_PASS.nbytes(flash) == 51_200 * 80 * 2
    other = dataclasses.replace(flash, hc_mult=3, hidden_size=7)
    assert [implementation.values(other) for implementation in IMPLEMENTATIONS] == [16 * 7, 11 * 7, 8 * 7]
