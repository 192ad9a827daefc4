"""What the recovery policy decides, and that its reasons name who, why, when and which setting."""

from __future__ import annotations

import dataclasses

import pytest

from checkpoint.budget import Recovery, RecoveryMode
from checkpoint.policy import FailureEvent, FailureHistory, RecoveryPolicy


def event(role: str) -> FailureEvent:
    return FailureEvent(role, 3, 2, "its process died", 1234)


@pytest.mark.parametrize(("replacements", "limit", "action"), [
    (0, 1, "replace"), (0, 0, "fail"), (9, 10, "replace"), (10, 10, "fail"), (11, 10, "fail")
])  # fmt: skip
def test_trainers_are_replaced_up_to_the_limit(replacements: int, limit: int, action: str) -> None:
    decision = RecoveryPolicy().decide(event("trainer"), FailureHistory(replacements, limit))
    assert decision.action == action
    assert decision.reason.startswith("trainer 3 (generation 2): its process died after 1234 samples")
    assert (f"failure.max_failures={limit}" in decision.reason) == (action == "fail")


def test_a_shard_is_adopted_as_long_as_its_memory_is_held() -> None:
    held = dataclasses.replace(event("shard"), memory_held=True)
    decision = RecoveryPolicy().decide(held, FailureHistory(0, 10))
    assert decision.action == "adopt"
    assert decision.reason.startswith("shard 3 (generation 2): its process died after 1234 samples; its rows are still")
    assert RecoveryPolicy().decide(held, FailureHistory(10, 10)).action == "fail"


@pytest.mark.parametrize(("mode", "action"), [("partial", "restore"), ("full", "roll_back")])
def test_the_budget_says_how_rows_that_are_gone_come_back(mode: RecoveryMode, action: str) -> None:
    gone = dataclasses.replace(event("shard"), rows=Recovery(mode, "costs PLS 0.01"))
    decision = RecoveryPolicy().decide(gone, FailureHistory(0, 10))
    assert decision.action == action and decision.reason.endswith("its rows are gone: costs PLS 0.01")
    assert RecoveryPolicy().decide(dataclasses.replace(gone, memory_held=True), FailureHistory(0, 10)).action == "adopt"


def test_without_saves_rows_that_are_gone_end_the_run() -> None:
    gone = RecoveryPolicy().decide(event("shard"), FailureHistory(0, 10))
    assert gone.action == "fail" and gone.reason.endswith("gone with it, and checkpoint.enabled is false")


def test_a_spare_that_dies_is_no_failure() -> None:
    assert RecoveryPolicy().decide(event("spare"), FailureHistory(10, 10)).action == "ignore"


@pytest.mark.parametrize(("role", "action"), [("keeper", "renew"), ("sync_server", "restart")])
def test_what_can_be_made_again_from_those_who_live_is(role: str, action: str) -> None:
    decision = RecoveryPolicy().decide(event(role), FailureHistory(0, 10))
    assert decision.action == action
    assert decision.reason.startswith(f"{role} 3 (generation 2): its process died after 1234 samples")


def test_a_decision_depends_on_its_arguments_alone() -> None:
    policy = RecoveryPolicy()
    first = policy.decide(event("trainer"), FailureHistory(0, 1))
    policy.decide(event("shard"), FailureHistory(5, 1))
    assert policy.decide(event("trainer"), FailureHistory(0, 1)) == first
