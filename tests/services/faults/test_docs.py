"""docs/faults.md: the plan is one, and every table names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from services.faults.phases import BOARD_ROLES, Phase
from services.faults.plan import Fault
from services.faults.plan_file import parse_plan
from services.faults.storage_fault import StorageFault

PAGE = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_plan_of_the_page_has_every_kind_of_fault() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    plan = parse_plan(text, "docs/faults.md")
    every = {get_args(kind.model_fields["do"].annotation)[0] for kind in get_args(get_args(Fault)[0])}
    assert {fault.do for fault in plan.faults} == every and len(every) == 5


def test_phases_roles_and_storage_faults_are_all_named() -> None:
    for name in [*(phase.name.lower() for phase in Phase), *BOARD_ROLES]:
        assert f"`{name}`" in PAGE, name
    kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(StorageFault)[0])}
    assert set(re.findall(r"^\| `(\w+)` \|.*\|.*\|.*\|$", PAGE, re.MULTILINE)) - {"kind"} == kinds and len(kinds) == 7
