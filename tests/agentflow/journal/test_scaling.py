"""The benchmark of many workers on one Postgres, in its short form; in full by `make bench`."""

import json

import pytest

from benchmarks import scaling


@pytest.mark.promise("journal:scaling")
def test_many_workers_on_one_database_lose_no_lease_and_no_acknowledged_entry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A held seed outlives two leases.
    assert scaling.main(["--workers", "6", "--seconds", "6", "--rate", "300", "--seeds", "20000"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    for part in ("fastest", "paced"):
        assert figures[part]["lost"] == 0
        assert figures[part]["claims"] > 0
        assert figures[part]["rows"] >= scaling.ENTRIES
    assert figures["workers"] == 6
