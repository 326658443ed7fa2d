"""Described lengths become numbers with the mean that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.core.errors import InputError
from ridgeline.plan.rl_workload import ConstantTokens, LognormalSeconds, LognormalTokens, TokensFile, UniformTokens
from ridgeline.rl.lengths import latency_quantiles, length_quantiles, moments, normal_quantiles

SHARES = (np.arange(20_000) + 0.5) / 20_000


@pytest.mark.parametrize(("mean", "sigma", "high"), [(1000, 0.5, 8192), (1100, 1.0, 28672), (5000, 1.2, 8192)])
def test_a_cut_lognormal_has_the_mean_that_was_asked_for(mean: int, sigma: float, high: int) -> None:
    found = length_quantiles(LognormalTokens(mean=mean, sigma=sigma, high=high), SHARES)
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert found.max() <= high
    assert (np.diff(found) >= 0).all()


def test_growth_lengthens_until_the_cut() -> None:
    lengths = LognormalTokens(mean=1000, high=4096)
    assert length_quantiles(lengths, SHARES, 2.0).mean() == pytest.approx(2000, rel=0.02)
    assert length_quantiles(lengths, SHARES, 9.0).max() == 4096


def test_normal_quantiles_are_symmetric() -> None:
    found = normal_quantiles(np.array([0.025, 0.5, 0.975]))
    assert found == pytest.approx([-1.96, 0.0, 1.96], abs=1e-3)


def test_a_file_of_lengths_is_read_by_column(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,answer\n10,100\n20,300\n")
    assert length_quantiles(TokensFile(file=str(file), column="answer"), np.array([0.0, 1.0])).tolist() == [100, 300]
    for column, text in (("reply", "prompt,answer\n1,2\n"), ("", "prompt\nnone\n"), ("", "")):
        other = tmp_path / f"wrong{len(text)}.csv"
        other.write_text(text)
        with pytest.raises(InputError):
            length_quantiles(TokensFile(file=str(other), column=column), np.array([0.5]))


def test_moments_weigh_samples_by_their_tokens() -> None:
    same = moments(ConstantTokens(tokens=100), ConstantTokens(tokens=900))
    assert (same.mean, same.attended, same.longest) == (1000, 1000, 1000)
    spread = moments(ConstantTokens(tokens=100), UniformTokens(low=1, high=1800))
    assert spread.attended > spread.mean * 1.2


def test_latency_is_cut_at_its_timeout() -> None:
    found = latency_quantiles(LognormalSeconds(mean=2.0, sigma=1.5, high=30.0), SHARES)
    assert found.mean() == pytest.approx(2.0, rel=0.02)
    assert found.max() <= 30.0
