"""Times of the server inside a container."""

import pytest

from runtimes.docker.inside._container_init import ServerClock


@pytest.mark.promise("docker:limits")
def test_a_late_request_does_not_make_the_start_of_a_run_late() -> None:
    clock = ServerClock(lambda: 1003.0)
    assert clock.convert(990.0, sent=1000.0) == 990.0


@pytest.mark.promise("docker:limits")
def test_the_least_delayed_request_determines_the_offset_of_another_kernel_s_clock() -> None:
    times = iter([12.5, 20.125, 33.0])
    clock = ServerClock(lambda: next(times))
    starts = [clock.convert(1000.0, sent) for sent in (1010.0, 1020.0, 1030.0)]
    assert starts == [2.5, 0.125, 0.125]
