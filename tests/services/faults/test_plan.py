from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma, kstest

from services.faults.plan import AtTime, FaultPlan
from services.faults.plan_file import PlanError, load_plan, parse_plan
from services.faults.schedule import expand

KILL = {"do": "kill", "whom": {"role": "shard"}}


def plan_of(*faults: dict[str, Any], **fields: Any) -> FaultPlan:
    return FaultPlan.model_validate({"faults": faults, **fields})


def times_s(plan: FaultPlan, number: int = 0) -> list[float]:
    moments = expand(plan)[number].moments
    assert all(isinstance(moment, AtTime) for moment in moments)
    return [moment.at_s for moment in moments if isinstance(moment, AtTime)]


EXPONENTIAL = {"law": "exponential", "mean_s": 12.0, "count": 2000}
GAMMA = {"law": "gamma", "mean_s": 12.0, "shape": 0.5, "count": 2000}
UNIFORM = {"law": "uniform", "from_s": 10.0, "to_s": 70.0, "count": 2000}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (EXPONENTIAL, ("expon", (0.0, 12.0))),
        (GAMMA, gamma(0.5, scale=24.0).cdf),
        ({**GAMMA, "shape": 4.0}, gamma(4.0, scale=3.0).cdf),
        (UNIFORM, ("uniform", (10.0, 60.0))),
    ],
)
def test_times_follow_their_law(when: dict[str, Any], expected: Any) -> None:
    found = np.array(times_s(plan_of({**KILL, "when": when}, seed=3)))
    assert len(found) == 2000 and (np.diff(found) >= 0).all()
    sample = found if when["law"] == "uniform" else np.diff(found, prepend=0.0)
    name, arguments = expected if isinstance(expected, tuple) else (expected, ())
    assert kstest(sample, name, arguments).pvalue > 0.01
    assert kstest(sample * 1.5, name, arguments).pvalue < 1e-6, "the test can tell"


def test_the_same_seed_gives_the_same_times_and_faults_do_not_disturb_each_other() -> None:
    one, other = {**KILL, "when": EXPONENTIAL}, {**KILL, "when": GAMMA}
    both = plan_of(one, other, seed=5)
    assert expand(both) == expand(both)
    assert times_s(both) == times_s(plan_of(one, seed=5))
    assert times_s(both, 1) != times_s(both, 0)
    assert times_s(both) != times_s(plan_of(one, seed=6))
    assert times_s(plan_of({**KILL, "when": {"law": "exponential", "mean_s": 10.0, "count": 3}}, seed=1)) == (
        pytest.approx([10.730, 13.815, 67.569], abs=5e-4)
    )


def test_phases_repeat_and_single_moments_do_not() -> None:
    plan = plan_of(
        {**KILL, "when": {"phase": "update", "times": 3}},
        {**KILL, "when": {"at_samples": 5}},
    )
    assert [len(series.moments) for series in expand(plan)] == [3, 1]


WRONG = """\
seeds: 3
faults:
  - do: kill
    whom: {role: shard, idx: 1}
    when: {phase: updat}
  - do: stop
    whom: {role: nobody}
    when:
      phase: update
      at_s: 3
  - do: storage
    fault: {kind: fulll}
    when: {phase: update}
    hold_s: 0
  - do: kill
    whom: {role: shard, index: -1}
    when: {law: gamma, mean_s: 3, count: 0}
  - do: explode
"""


def test_every_problem_is_named_with_file_line_and_key() -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(WRONG, "plan.yaml")
    lines = str(caught.value).splitlines()
    expected = [
        "plan.yaml line 1: unknown key seeds; did you mean seed?",
        "plan.yaml line 4: unknown key faults[0].whom.idx; did you mean index?",
        "plan.yaml line 5: faults[0].when.phase: input should be 'idle', ",
        "plan.yaml line 7: faults[1].whom.role: input should be ",
        "plan.yaml line 8: faults[1].when: exactly one of at_s, at_samples, phase and law says when",
        "plan.yaml line 6: faults[1].hold_s is missing",
        "plan.yaml line 12: faults[2].fault: ",
        "plan.yaml line 13: faults[2].when: exactly one of at_s, at_samples and law says when",
        "plan.yaml line 14: faults[2].hold_s: input should be greater than 0; found 0",
        "plan.yaml line 16: faults[3].whom.index",
        "plan.yaml line 17: faults[3].when.count: input should be greater than or equal to 1",
        "plan.yaml line 18: faults[4]: ",
    ]
    for start in expected:
        assert any(line.startswith(start) for line in lines), (start, lines)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ({"law": "gamma", "mean_s": 3}, "law gamma is described by mean_s and shape; given: mean_s"),
        ({"law": "uniform", "from_s": 9, "to_s": 3}, "from_s=9 must be below to_s=3"),
        ({"law": "exponential"}, "law exponential is described by mean_s; given: none of them"),
    ],
)
def test_a_law_with_wrong_parameters_says_which(law: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of({**KILL, "when": {**law, "count": 2}})


def test_broken_files_are_named(tmp_path: Any) -> None:
    with pytest.raises(PlanError, match=r"absent\.yaml: cannot be read"):
        load_plan(tmp_path / "absent.yaml")
    (tmp_path / "p.yaml").write_text("faults: [\n")
    with pytest.raises(PlanError, match=r"p\.yaml line 2: not valid YAML"):
        load_plan(tmp_path / "p.yaml")
    (tmp_path / "p.yaml").write_text("")
    with pytest.raises(PlanError, match="faults is missing"):
        load_plan(tmp_path / "p.yaml")
