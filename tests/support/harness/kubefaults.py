"""Faults of an installed system, each from its beginning to its end, and how long clients may feel them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from harness import kubechart, kubecluster
from harness.kubectl import until
from harness.kubesystem import StreamSystem, Worker

ZOMBIE_S = 60.0
STORE_OUTAGE_S = 30.0
SECOND_KILL_S = 10.0
CUT_OFF_S = 60.0
API_OUTAGE_S = 60.0
API_BACK_DEADLINE_S = 120.0
AFTER_OUTAGE_S = 20.0

CRASH_BOUNDS_S = {"tailrace": 10.0, "java": 25.0}
DRAIN_BOUNDS_S = {"tailrace": 3.0, "java": 3.0}
# Clients of a frozen pod wait as long as they take a silent connection for a living one.
FREEZE_BOUNDS_S = {"tailrace": 75.0, "java": 90.0}
CUT_OFF_BOUNDS_S = {"tailrace": 25.0, "java": 25.0}
STATUS_BOUNDS_S = {"tailrace": 25.0, "java": 45.0}
REBUILD_BOUNDS_S = {"tailrace": 45.0, "java": 75.0}

Breaking = Callable[[StreamSystem, Worker], float | None]
"""Break something at a worker, and wait for the end of the fault.

Return the last moment at which what was away was still away, in seconds of the epoch; None: service may return at once.
"""


@dataclass(frozen=True)
class Fault:
    """What happens, and for how long a key may wait for an acknowledgement, by kind of client.

    ``from_return``: the bound counts from the return of what was away, not from the last acknowledgement before;
    writers must have paused until then, else nothing was away.
    ``moves``: whether containers may go to other workers.
    """

    name: str
    run: Breaking
    bounds_s: dict[str, float]
    from_return: bool = False
    moves: bool = True


def _store_pod(system: StreamSystem, victim: Worker) -> None:
    system.kill_pods(victim.pod)


def _two_store_pods(system: StreamSystem, victim: Worker) -> None:
    """Another one is killed while the first is just back."""
    other = next(pod for pod in system.pods("segmentstore") if pod != victim.pod)
    system.kill_pods(victim.pod)
    time.sleep(SECOND_KILL_S)  # the fault's length
    system.kill_pods(other)


def _worker(system: StreamSystem, victim: Worker) -> None:
    system.signal_worker(victim, "SIGKILL")


def _zombie(system: StreamSystem, victim: Worker) -> None:
    pid = system.signal_worker(victim, "SIGSTOP")
    time.sleep(ZOMBIE_S)  # the fault's length
    system.wake(victim.pod, pid)


def _frozen_pod(system: StreamSystem, victim: Worker) -> None:
    """All processes of the pod stand still, also the one that would end a worker which does: a real zombie."""
    kubecluster.freeze_pod(system.kube.namespace, victim.pod)
    time.sleep(ZOMBIE_S)  # the fault's length
    kubecluster.thaw_pod(system.kube.namespace, victim.pod)


def _controller(system: StreamSystem, _: Worker) -> None:
    system.kill_pods(system.pods("controller")[0])


def _operator(system: StreamSystem, _: Worker) -> None:
    system.kill_pods(system.leading_operator())


def _operator_and_store(system: StreamSystem, victim: Worker) -> None:
    system.kill_pods(system.leading_operator(), victim.pod)


def _drain(system: StreamSystem, victim: Worker) -> None:
    system.delete_pod(victim.pod)


def _object_store(system: StreamSystem, _: Worker) -> float:
    kubechart.stop_minio(system.kube)
    time.sleep(STORE_OUTAGE_S)  # the fault's length
    return kubechart.start_minio(system.kube)


def _store_without_tier2(system: StreamSystem, victim: Worker) -> None:
    """Nothing between one pod and the object store: its workers live, and can write no log."""
    with kubecluster.no_packets(system.kube, [victim.pod], [f"{kubechart.MINIO}-0"]):
        time.sleep(CUT_OFF_S)  # the fault's length


def _controller_without_stores(system: StreamSystem, _: Worker) -> None:
    """Nothing between one controller and the segment stores: it says so, and its clients find the other one."""
    victim = system.pods("controller")[0]
    with kubecluster.no_packets(system.kube, [victim], system.pods("segmentstore")):
        began_s = time.monotonic()
        system.kube.until_condition("pod", victim, "Ready", "False", CUT_OFF_S)
        time.sleep(max(0.0, CUT_OFF_S - (time.monotonic() - began_s)))  # the fault's length


def _api_server(system: StreamSystem, _: Worker) -> None:
    for how in ("refuse", "hang"):
        kubecluster.stop_api_server(API_OUTAGE_S, how)
        time.sleep(API_OUTAGE_S)  # the fault's length
        until("the API server is back", lambda: system.kube("get", "--raw", "/readyz"), API_BACK_DEADLINE_S)
        time.sleep(AFTER_OUTAGE_S)  # so that the second outage meets a system at work again


def _status_and_pods(system: StreamSystem, _: Worker) -> None:
    system.wipe_status()
    system.kill_pods(*system.pods("segmentstore"))


def _everything_but_data(system: StreamSystem, _: Worker) -> None:
    system.kube("delete", "leases", "--all")
    system.wipe_status()
    system.kill_pods(*system.pods("segmentstore"), *system.pods("controller"))


STORE_POD = Fault("store pod killed", _store_pod, CRASH_BOUNDS_S)
WORKER = Fault("worker killed", _worker, CRASH_BOUNDS_S)
DRAIN = Fault("store pod drained", _drain, DRAIN_BOUNDS_S)
SHORT = (STORE_POD, WORKER, DRAIN)
ALL = (
    *SHORT,
    Fault("worker stopped for 60 s", _zombie, CRASH_BOUNDS_S),
    Fault("store pod frozen for 60 s", _frozen_pod, FREEZE_BOUNDS_S),
    Fault("controller killed", _controller, CRASH_BOUNDS_S),
    Fault("operator killed", _operator, CRASH_BOUNDS_S),
    Fault("two store pods killed, 10 s apart", _two_store_pods, CRASH_BOUNDS_S),
    Fault("operator and store pod killed", _operator_and_store, CRASH_BOUNDS_S),
    Fault("object store away for 30 s", _object_store, CRASH_BOUNDS_S, from_return=True),
    Fault("store pod cut off from the object store for 60 s", _store_without_tier2, CUT_OFF_BOUNDS_S),
    Fault("controller cut off from segment stores for 60 s", _controller_without_stores, CRASH_BOUNDS_S, moves=False),
    Fault("API server away for 60 s, twice", _api_server, CRASH_BOUNDS_S, moves=False),
    Fault("status wiped, store pods killed", _status_and_pods, STATUS_BOUNDS_S),
    Fault("status and Leases wiped, pods killed", _everything_but_data, REBUILD_BOUNDS_S),
)
