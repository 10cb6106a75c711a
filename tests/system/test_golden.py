"""The files of the standard runs are those of golden.toml, byte for byte.

Left out, because two runs in different folders differ:

- `summary.json` and the output of a rollout: durations.
- `episodes.db` of a tuning: keys and times; the order of finished results (`harvests`), the usage by process and the order of
  entries in a journal. All other records of journals are compared, without their times.
- the time at which `report.html` says that a run began.
- `README.md` and `manifest.json` of exports of a tuning: the key of its run is its folder's.

A pinned pyarrow of another version may write other bytes of Parquet.
"""

from pathlib import Path

import pytest

from tests.system._golden import digests_of, expected_digests, golden_files


@pytest.mark.timeout(600)
@pytest.mark.promise("repository:golden")
def test_the_standard_runs_write_the_recorded_bytes(tmp_path: Path) -> None:
    digests, expected = digests_of(golden_files(tmp_path)), expected_digests()
    differing = [name for name in {**expected, **digests} if digests.get(name) != expected.get(name)]
    hint = "if this is intended, run: python -m tests.system._golden --write"
    assert not differing, f"{', '.join(differing)}: other bytes than golden.toml; {hint}"
