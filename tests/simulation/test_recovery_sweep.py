"""A recovery dies at each of its disk operations and store requests: the next one comes to the same (I16)."""

from __future__ import annotations

import pytest

from sim.workloads.recoverysweep import RecoverySweep


@pytest.mark.timeout(3000)  # for a machine with other work
def test_death_at_every_step_of_a_recovery(test_profile: str, test_seed: int) -> None:
    deaths_max, seeds = (1000, 20) if test_profile == "full" else (60, 3)
    sweeps = [RecoverySweep(seed, deaths_max) for seed in range(test_seed, test_seed + seeds)]
    for sweep in sweeps:
        sweep.run()
    assert sum(sweep.steps for sweep in sweeps) > 5 * seeds
