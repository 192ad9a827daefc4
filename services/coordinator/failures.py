"""What is done about a death: record it, decide, act. Called from the run's thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkpoint.policy import Action, FailureEvent, FailureHistory, RecoveryPolicy
from services.coordinator.books import Books
from services.coordinator.books_state import BooksState
from services.coordinator.directory import Directory, Entry
from services.coordinator.failure_line import failure_line
from services.coordinator.launch import Launcher
from services.coordinator.places import Places
from services.coordinator.recovery import Recovery
from services.coordinator.rollback import Rollback
from services.coordinator.row_recovery import RowRecovery
from services.coordinator.saver import Saver
from services.coordinator.supervisor import Death
from services.identity import Address
from services.summary import Failure
from services.transport.shard_client import ShardTarget


def failure_of(death: Death, samples: int = 0) -> Failure:
    """What is known of a death before anything was done about it."""
    address = death.entry.address
    return Failure(
        role=address.role, index=address.index, cause=death.cause, at_samples=samples, detect_s=death.detect_s
    )


class RunFailedError(RuntimeError):
    """The run cannot go on; the message goes into its summary."""


class CancelledError(RuntimeError):
    """The run was told to stop."""


@dataclass(slots=True)
class _Replay:
    """A rollback whose samples are being trained again."""

    failure: int
    until_samples: int
    started_s: float


class FailureHandler:
    """Keeps the list of failures."""

    def __init__(
        self,
        directory: Directory,
        launcher: Launcher,
        recovery: Recovery,
        places: Places,
        saver: Saver | None,
        rows: RowRecovery | None,
        rollback: Rollback | None,
        max_failures: int,
        warm: bool,
        total_samples: int,
        books: Callable[[], Books | None],
        new_books: Callable[[BooksState | None], None],
        retire_books: Callable[[], None],
        remember: Callable[[], None],
        running: set[Address],
        event: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """``saver``, ``rows`` and ``rollback`` are ``None`` when nothing is saved. ``running``: kept up to date.

        ``remember``: has the state store know what is known now, if it answers.
        """
        self._directory, self._launcher, self._recovery, self._places = directory, launcher, recovery, places
        self._saver, self._rows, self._rollback = saver, rows, rollback
        self._max_failures, self._warm, self._total = max_failures, warm, total_samples
        self._books, self._new_books, self._retire_books, self._running = books, new_books, retire_books, running
        self._event, self._say = event, say
        self._replays: list[_Replay] = []
        self._replacements = 0
        self._remember = remember
        self.rolling_back = False
        """Whoever replaces this coordinator in the middle has to do it again."""
        self.failures: list[Failure] = []
        self.rolled_back_samples = 0

    def handle(self, death: Death) -> None:
        """One death.

        Raises:
            RunFailedError: the policy says that the run ends.
        """
        entry, address = death.entry, death.entry.address
        if not self._directory.knows(address):  # what was done about another death replaced it already
            return
        if self._saver is not None:
            self._saver.interrupt()
        self._keeper_first(entry)
        confirmed = self._launcher.confirm_dead(entry)  # a hung process must not come back beside its successor
        self._directory.remove(address)
        self._running.discard(address)
        books = self._books()
        samples = books.counts.trained if books else 0
        held = confirmed and self._warm and address.role == "shard" and self._launcher.holds(entry)
        rows = None
        if address.role == "shard" and self._saver is not None and not held:
            planner = self._saver.planner
            rows = planner.recovery(planner.loss([address.index], samples, {}), self._total)
        event = FailureEvent(address.role, address.index, address.generation, death.cause, samples, held, rows)
        decision = RecoveryPolicy().decide(event, FailureHistory(self._replacements, self._max_failures))
        self._event("death", address=str(address), cause=death.cause, action=decision.action, detect_s=death.detect_s)
        failure = failure_of(death, samples)
        if decision.action == "fail":
            self.failures.append(failure)
            raise RunFailedError(decision.reason)
        if decision.action == "ignore":
            node_id = self._places.for_spare(entry)
            if node_id is not None:
                self._recovery.replace_spare(address.index, node_id)
            return
        self._replacements += 1
        self.failures.append(failure)
        with contextlib.ExitStack() as stack:
            if decision.action != "adopt" and self._saver is not None:  # that one is quick, and reads no save
                stack.enter_context(self._saver.hold())
            self._act(decision.action, entry, failure)

    def _act(self, action: Action, entry: Entry, failure: Failure) -> None:
        books, address = self._books(), entry.address
        number = len(self.failures) - 1
        if action == "adopt":
            adopted = self._recovery.adopt_shard(entry, failure)
            self.failures[number] = adopted or self._without_memory(entry, failure, number)
        elif action in ("restore", "roll_back"):
            self.failures[number] = self._restore(entry, failure, number, action == "roll_back")
        elif action == "renew":
            self.failures[number] = self._recovery.renew_keeper(entry, failure)
        elif action == "restart":
            self.failures[number] = self._recovery.restart_sync_server(entry, failure)
        else:
            requeued = books.requeue(address.index) if books else 0
            successor, self.failures[number] = self._recovery.replace_trainer(
                entry, self._places.for_trainer(entry), failure, requeued
            )
            self._running.add(successor)

    def successor(self, trainer: Address, lost: Address) -> ShardTarget | None:
        """Where a trainer finds the younger incarnation of ``lost``; ``None`` while it has no rows yet."""
        return self._recovery.successor(trainer, lost)

    def recall(self, failures: Sequence[Mapping[str, Any]], rolled_back_samples: int, rolling_back: bool) -> None:
        """After a restart of the coordinator: what happened before."""
        self.rolling_back = rolling_back
        self.failures = [Failure.model_validate(one) for one in failures]
        self._replacements = len(self.failures)
        self.rolled_back_samples = rolled_back_samples

    def note_coordinator(self, samples: int) -> None:
        """This coordinator replaces one that died; nobody waited for it."""
        failure = Failure(
            role="coordinator", index=0, cause="its process died", at_samples=samples, mode="warm", pls=0.0, load_s=0.0
        )
        self.failures.append(failure)
        self._event("coordinator_restarted", at_samples=samples)
        self._say(failure_line(failure, "a new one knows the living actors from the state store"))

    def poll(self) -> None:
        """Note which rollbacks have been caught up with; start spares that are due."""
        self._recovery.poll()
        books = self._books()
        if books is None or not self._replays:
            return
        for replay in [one for one in self._replays if books.counts.trained >= one.until_samples]:
            self._replays.remove(replay)
            seconds = time.monotonic() - replay.started_s
            self.failures[replay.failure] = self.failures[replay.failure].model_copy(update={"replay_s": seconds})
            self._event("replayed", samples=replay.until_samples, seconds=seconds)

    def _keeper_first(self, entry: Entry) -> None:
        """Who died needs its node's keeper to come back: if that died as well, it is replaced before."""
        for keeper in self._directory.all("keeper"):
            if keeper.node_id == entry.node_id and keeper is not entry and not self._launcher.answers(keeper):
                self.handle(Death(keeper, "its process died", 0.0))

    def _without_memory(self, entry: Entry, failure: Failure, number: int) -> Failure:
        """Its memory was not whole: as if it were gone."""
        if self._saver is None:
            raise RunFailedError(
                f"shard {entry.address.index}: its memory is not whole, and checkpoint.enabled is false"
            )
        planner = self._saver.planner
        recovery = planner.recovery(planner.loss([entry.address.index], failure.at_samples, {}), self._total)
        return self._restore(entry, failure, number, recovery.mode == "full")

    def _restore(self, entry: Entry, failure: Failure, number: int, everybody: bool) -> Failure:
        assert self._rows is not None
        if not everybody:
            return self._rows.restore_shard(entry, self._places.for_shard(entry), failure)
        return self._roll_back([entry], failure, number)

    def take_over(self, deaths: Sequence[Death]) -> None:
        """After a restart of the coordinator: who died meanwhile, and a rollback that was under way."""
        again = {(death.entry.address.role, death.entry.address.index) for death in deaths}
        if not self.rolling_back:  # what the former coordinator was at when it died is done, and counted, anew
            self.failures = [one for one in self.failures if one.mode != "none" or (one.role, one.index) not in again]
        for death in deaths:
            if death.entry.address.role == "keeper":
                self.handle(death)
        if self.rolling_back and self._rollback is not None:
            lost = [death.entry for death in deaths if death.entry.address.role == "shard"]
            for entry in lost:
                self._launcher.confirm_dead(entry)
                self._directory.remove(entry.address)
            unfinished = [n for n, one in enumerate(self.failures) if (one.role, one.mode) == ("shard", "none")]
            number = unfinished[-1] if unfinished else len(self.failures) - 1
            self.failures[number] = self._roll_back(lost, self.failures[number], number)
        for death in deaths:  # but for those who were replaced already
            self.handle(death)

    def _roll_back(self, gone: list[Entry], failure: Failure, number: int) -> Failure:
        assert self._rows is not None and self._rollback is not None and self._saver is not None
        started = time.monotonic()
        self.rolling_back = True
        self._remember()
        back = self._rollback.run(gone, self._retire_books)
        self._saver.planner.row_losing_failures += 1
        self._running.clear()
        self._new_books(back.state.books if back.state else None)
        self._running.update(self._rollback.start_trainers(back))
        lost = max(0, failure.at_samples - back.samples)
        self.rolled_back_samples += lost
        self._replays.append(_Replay(number, failure.at_samples, time.monotonic()))
        seconds = time.monotonic() - started
        failure = failure.model_copy(
            update={
                "mode": "full",
                "reschedule_s": max(0.0, seconds - back.load_s),
                "load_s": back.load_s,
                "pls": 0.0,
                "samples_at_risk": lost,
                **self._rows.budget(),
            }
        )
        where = f"save {back.save_id}" if back.save_id else "the beginning: nothing was saved yet"
        self._say(failure_line(failure, f"everybody is back at {where}, {back.samples:,} samples"))
        self._event(
            "rolled_back",
            save_id=back.save_id,
            timeline=back.timeline,
            samples=back.samples,
            lost_samples=lost,
            seconds=seconds,
            load_s=back.load_s,
            skipped=list(back.skipped),
            pids=back.pids,
        )
        self.rolling_back = False
        self._saver.replan()
        return failure
