"""The breaker leaves a failing endpoint alone, and lets at most one probe through while it is half-open."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.chat.breaker import Breaker, BreakerState

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def breaker(clock, failures=3, cool_down_s=1.0, max_cool_down_s=8.0) -> Breaker:
    return Breaker(failures, cool_down_s, max_cool_down_s, clock=clock, uniform=lambda low, high: high)


def opened(clock, **kwargs) -> Breaker:
    made = breaker(clock, failures=1, **kwargs)
    made.settle(made.admit(), False)
    return made


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not():
    made = breaker(Clock())
    for alive in (False, False, True, False, False):
        made.settle(made.admit(), alive)
    assert made.state is BreakerState.CLOSED
    made.settle(made.admit(), False)
    assert made.state is BreakerState.OPEN
    assert made.admit() is None
    assert made.ready_in() == 1.0


def test_cancelled_requests_count_neither_for_nor_against():
    made = breaker(Clock())
    for alive in (False, None, False, None, None, None):
        made.settle(made.admit(), alive)
    assert made.state is BreakerState.CLOSED
    made.settle(made.admit(), False)  # the cancelled ones did not reset the count either
    assert made.state is BreakerState.OPEN


def test_one_probe_after_the_cool_down_and_its_success_lets_all_through():
    clock = Clock()
    made = opened(clock)
    clock.now += 0.99
    assert made.admit() is None
    clock.now += 0.02
    assert made.ready_in() == 0.0
    probe = made.admit()
    assert made.state is BreakerState.HALF_OPEN
    assert (made.ready_in(), made.admit()) == (math.inf, None)
    made.settle(probe, True)
    assert made.state is BreakerState.CLOSED
    assert made.admit() == made.admit()


def test_the_cool_down_doubles_up_to_its_maximum_and_a_success_resets_it():
    clock = Clock()
    made = opened(clock)
    waits = []
    for _ in range(5):
        waits.append(made.ready_in())
        clock.now += made.ready_in()
        made.settle(made.admit(), False)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    clock.now += made.ready_in()
    made.settle(made.admit(), True)
    made.settle(made.admit(), False)
    assert made.ready_in() == 1.0


def test_a_cancelled_probe_leaves_the_way_free_for_the_next():
    clock = Clock()
    made = opened(clock)
    clock.now += 1.0
    made.settle(made.admit(), None)
    assert made.state is BreakerState.OPEN
    assert made.ready_in() == 0.0
    probe = made.admit()
    assert probe is not None
    made.settle(probe, False)
    assert made.ready_in() == 2.0


def test_what_comes_of_requests_from_before_the_opening_is_ignored():
    clock = Clock()
    made = breaker(clock, failures=1)
    early, late, later = made.admit(), made.admit(), made.admit()
    made.settle(early, False)
    made.settle(late, True)
    assert made.state is BreakerState.OPEN  # a reply that was already on its way proves nothing
    clock.now += 1.0
    probe = made.admit()
    made.settle(later, False)
    assert made.state is BreakerState.HALF_OPEN
    made.settle(probe, True)
    made.settle(later, False)
    assert made.state is BreakerState.CLOSED


def test_the_jitter_shortens_a_cool_down_by_half_at_most():
    asked = []
    made = Breaker(1, 4.0, clock=Clock(), uniform=lambda low, high: asked.append((low, high)) or low)
    made.settle(made.admit(), False)
    assert asked == [(2.0, 4.0)]
    assert made.ready_in() == 2.0


@given(st.lists(st.tuples(st.sampled_from(["admit", "alive", "dead", "cancelled", "wait"]), st.integers(0, 9))))
def test_at_most_one_probe_is_on_its_way_whatever_happens(events):
    clock = Clock()
    made = breaker(clock, failures=2)
    tickets, probe = [], None
    for event, number in events:
        if event == "wait":
            clock.now += number / 2
        elif event == "admit":
            was = made.state
            ready = made.ready_in() == 0
            ticket = made.admit()
            assert (ticket is not None) == ready
            if ticket is not None:
                tickets.append(ticket)
                if was is BreakerState.OPEN:
                    assert probe not in tickets[:-1]  # the last probe was settled
                    probe = ticket
                assert was is not BreakerState.HALF_OPEN
        elif tickets:
            ticket = tickets.pop(number % len(tickets))
            was = made.state
            made.settle(ticket, {"alive": True, "dead": False, "cancelled": None}[event])
            if was is BreakerState.HALF_OPEN and ticket != probe:
                assert made.state is BreakerState.HALF_OPEN  # nobody but the probe decides
        if made.state is BreakerState.HALF_OPEN:
            assert tickets.count(probe) == 1
