"""Strikes: does one fault now, and writes down what really happened."""

from __future__ import annotations

import random
import time
from typing import Any

from services.faults.aim import Frozen
from services.faults.arm import Arm
from services.faults.board_reader import BoardReader, Slot
from services.faults.fault_log import FaultLog, Injected, NotInjected
from services.faults.holds import Holds
from services.faults.phases import BoardRole, Phase
from services.faults.plan import Kill, OnPhase, PoisonBatch, StateStoreAway, Stop, StorageFailure
from services.faults.storage_switch import ActiveFault, is_used
from services.faults.targets import Target, Targets, phase_of
from services.faults.victim import Victim


class Strikes:
    """Each method places the occurrence that ``arm`` is at (and moves it on), or says why it cannot be placed yet."""

    def __init__(
        self,
        targets: Targets,
        board: BoardReader | None,
        holds: Holds,
        log: FaultLog,
        rng: random.Random,
        control: str,
    ) -> None:
        self._targets, self._board, self._holds, self._log = targets, board, holds, log
        self._rng, self._control = rng, control

    def process(self, arm: Arm, fault: Kill | Stop | StateStoreAway, now_s: float, samples: int) -> str | None:
        """Kill or stop a random one of those who may be hit."""
        role: BoardRole
        if isinstance(fault, StateStoreAway):
            role, index = "state_store", None
        else:
            role, index = fault.whom.role, None if fault.whom.index == "any" else fault.whom.index
        target = self._pick(role, index, also_stopped=isinstance(fault, Kill) and index is not None)
        if target is None:
            return f"no living {role if index is None else Slot(role, index)} was found"
        try:
            victim = Victim(target.process)
        except ProcessLookupError:
            return f"{target.slot} (pid {target.process.pid}) died just before"
        with victim:
            self._holds.held.process(target.process)
            if not victim.freeze():
                victim.resume()
                self._holds.held.process_released(target.process)
                return f"{target.slot} (pid {target.process.pid}) died just before"
            self._finish(arm, target, victim, now_s, samples, phase_of(self._board, target), freezes=1)
        return None

    def hit(self, arm: Arm, frozen: Frozen, now_s: float, samples: int) -> None:
        """Kill or keep a process that was frozen in its phase."""
        aim = arm.aim
        assert aim is not None and isinstance(arm.moment, OnPhase)
        self._finish(
            arm,
            frozen.target,
            frozen.victim,
            now_s,
            samples,
            frozen.phase,
            freezes=aim.freezes,
            wanted_phase=arm.moment.phase,
            entry=frozen.entry,
        )
        aim.close()

    def storage(self, arm: Arm, fault: StorageFailure, now_s: float, samples: int) -> str | None:
        """Turn a storage fault on."""
        if not is_used(self._control):
            return f"nobody has opened a faulty:// URL under {self._control}"
        active = ActiveFault(id=f"{arm.series.number}.{arm.occurrence}", fault=fault.fault)
        self._holds.storage(active, arm.series.number, arm.occurrence, now_s, fault.hold_s)
        self._injected(arm, now_s, samples, hold_s=fault.hold_s)
        return None

    def poison(self, arm: Arm, fault: PoisonBatch, now_s: float, samples: int) -> str | None:
        """Ask a trainer for a bad batch, and wait until it has made one."""
        if self._board is None:
            return "there was no phase board to ask for it"
        if arm.asked is None:
            target = self._pick("trainer", None if fault.index == "any" else fault.index)
            if target is None:
                return f"no living trainer{'' if fault.index == 'any' else f'-{fault.index}'} was found"
            arm.asked = (target.slot, self._board.ask_poison(target.slot))
        slot, asked = arm.asked
        if not self._board.poison_taken(slot, asked):
            return f"{slot} took no batch"
        occupant = self._board.occupant(slot)
        self._injected(
            arm,
            now_s,
            samples,
            role=slot.role,
            index=slot.number,
            generation=occupant.generation if occupant else None,
            pid=occupant.process.pid if occupant else None,
        )
        return None

    def give_up(self, arm: Arm, now_s: float, samples: int, reason: str) -> None:
        """Write down that the occurrence was not placed (a bad batch may still come at the last moment)."""
        if arm.asked is not None and self._board is not None:
            slot, asked = arm.asked
            if not self._board.withdraw_poison(slot, asked):
                self._injected(arm, now_s, samples, role=slot.role, index=slot.number)
                return
        freezes = arm.aim.freezes if arm.aim else 0
        self._log.add(NotInjected(**self._common(arm, now_s), reason=reason, freezes=freezes))
        if arm.aim is not None:
            arm.aim.close()
        arm.next(now_s)

    def _pick(self, role: BoardRole, index: int | None, also_stopped: bool = False) -> Target | None:
        living = self._targets.living(role, index)
        fit = [target for target in living if also_stopped or target.process not in self._holds.stopped]
        return self._rng.choice(fit) if fit else None

    def _finish(
        self, arm: Arm, target: Target, victim: Victim, now_s: float, samples: int, phase: Phase | None, **fields: Any
    ) -> None:
        """From frozen to killed or held."""
        fault = arm.series.fault
        assert isinstance(fault, Kill | Stop | StateStoreAway)
        if isinstance(fault, Kill):
            victim.kill()
            self._holds.held.process_released(target.process)
        else:
            fields["hold_s"] = fault.hold_s
            self._holds.stop(target.process, arm.series.number, arm.occurrence, now_s, fault.hold_s)
        self._injected(
            arm,
            now_s,
            samples,
            role=target.slot.role,
            index=target.slot.number,
            generation=target.generation,
            pid=target.process.pid,
            phase=None if phase is None else phase.name.lower(),
            **fields,
        )

    def _injected(self, arm: Arm, now_s: float, samples: int, **fields: Any) -> None:
        self._log.add(Injected(**self._common(arm, now_s), due_s=arm.due_s, samples=samples, **fields))
        arm.next(now_s)

    def _common(self, arm: Arm, now_s: float) -> dict[str, Any]:
        series = arm.series
        return {
            "time": time.time(),
            "at_s": now_s,
            "fault": series.number,
            "occurrence": arm.occurrence,
            "do": series.fault.do,
        }
