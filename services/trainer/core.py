"""Sets up and runs a trainer's threads; the actor around it only speaks Ray."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from torch import Tensor, nn

from checkpoint.manifest import FileEntry
from checkpoint.read_state import read_state
from checkpoint.state_file import write_state
from checkpoint.ticket import SaveTicket
from services.identity import Address
from services.trainer.dense_start import CENTER_STATE, INITIAL, SavedAt, dense_state_name, start_dense
from services.trainer.foreground_easgd import ForegroundEasgd
from services.trainer.leases import CoordinatorLeases
from services.trainer.locate import ShardLocator
from services.trainer.progress_rates import ProgressRates
from services.trainer.reporter import Reporter
from services.trainer.spec import TrainerSpec
from services.transport.client import POOLED_TYPE, ShardedEmbeddingClient
from services.transport.messages import Array, to_array
from services.transport.routing import Router
from trainer.data.dataset import Dataset
from trainer.data.encoder import FeatureEncoders
from trainer.data.reader import BatchReader
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_state import dense_tensors, load_weights, snapshot, weight_tensors
from trainer.dense_step import DenseReplica
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout
from trainer.hogwild import HogwildWorker
from trainer.ledger import Ledger
from trainer.pause import PauseGate
from trainer.tables import mean_pooled, pooled_shape, table_dims

_FIND_S = 5.0


class TrainerCore:
    """One dense replica, ``hogwild_threads`` workers, readers and a reporter."""

    def __init__(
        self,
        address: Address,
        keeper: str,
        coordinator: Any,
        spec: TrainerSpec,
        dataset: Dataset,
        encoders: FeatureEncoders,
        poison_due: Callable[[], bool] = lambda: False,
    ) -> None:
        """``poison_due``: asked once a batch, whether a fault on purpose makes it non-finite."""
        self._address, self._spec, self._coordinator = address, spec, coordinator
        self._stop, self._poison_due = threading.Event(), poison_due
        self._gate = PauseGate(spec.config.train.hogwild_threads)
        self._snapshot: tuple[Tensor, Tensor] | None = None
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        config = spec.config
        self._dims = table_dims(config.model, config.embedding, spec.tables)
        self.ledger = Ledger()
        self.dense_from = INITIAL
        self._replica = self._dense_replica(keeper)
        self._sync = (
            None
            if not config.synchronized
            else ForegroundEasgd(
                address,
                spec.sync_server,
                spec.sync_keeper,
                self._replica.weights,
                config.sync.gap,
                self._find_sync_server,
            )
        )
        if self._sync is not None and self.dense_from == INITIAL and spec.trained_samples:
            self._replica.weights.copy_(self._sync.center())
            self.dense_from = "the centre"
        self._rates = ProgressRates(
            config.dense, config.embedding, spec.total_samples, config.cluster.trainers, spec.trained_samples
        )
        self._reporter = Reporter(address, coordinator, self.ledger, self._rates, self._fail)
        self._leases = CoordinatorLeases(address, coordinator, self._stop, config.data.reader_threads)
        self._reader = BatchReader(
            dataset,
            encoders,
            self._leases,
            config.train.batch_size,
            config.data.reader_threads,
            config.data.prefetch_batches,
            on_rejected=self._reporter.rejected,
        )
        self._eval_lock = threading.Lock()
        self._eval_cache: tuple[int, Tensor] | None = None
        router = Router(spec.tables, spec.table_rows, self._dims, spec.pieces)
        self.workers = [self._worker(thread, router) for thread in range(config.train.hogwild_threads)]

    def run(self) -> None:
        """Train until the coordinator has no more work; raises the first failure of any thread."""
        threads = self._threads = [
            threading.Thread(target=self._guard, args=(worker,), name=f"hogwild-{index}", daemon=True)
            for index, worker in enumerate(self.workers)
        ]
        self._reporter.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._reader.close()
        self._reporter.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the run early: threads leave at their next step."""
        self._stop.set()
        self._reader.close()

    def end(self) -> None:
        """As ``stop``, and wait until every thread has left; what they did not report is dropped."""
        self._gate.open()
        self.stop()
        for thread in self._threads:
            thread.join()
        self._reporter.abandon()

    def pause(self, hold_s: float, timeout_s: float) -> bool:
        """Stop every thread at a batch edge, with everything it did applied and reported, and copy the dense state.

        False, and the threads go on, when that does not succeed within ``timeout_s``; after ``hold_s`` they do so by
        themselves.
        """
        deadline = time.monotonic() + timeout_s
        if not self._gate.close(hold_s, timeout_s):
            return False
        if not self._reporter.flush(max(0.0, deadline - time.monotonic())):
            self._gate.open()
            return False
        self._snapshot = snapshot(self._replica.weights, self._replica.state)
        return True

    def resume(self) -> bool:
        """Let the threads go on; False when they already did."""
        return self._gate.open()

    def save_dense(self, ticket: SaveTicket) -> FileEntry:
        """Write the dense state of the last pause for a consistent save, as it is now for others.

        Raises:
            StorageError: it could not be written.
        """
        replica, taken = self._replica, self._snapshot
        if taken is None or not ticket.consistent:
            taken = snapshot(replica.weights, replica.state)
        self._snapshot = None
        tensors = dense_tensors(replica.layout, replica.optimizer, *taken)
        return write_state(ticket, dense_state_name(self._address.index), tensors)

    def save_center(self, ticket: SaveTicket) -> FileEntry:
        """Write the sync server's copy, held since the cut of a consistent save.

        Raises:
            StorageError: it could not be written.
        """
        assert self._sync is not None
        tensors = weight_tensors(self._replica.layout, self._sync.center(held=ticket.consistent))
        return write_state(ticket, CENTER_STATE, tensors)

    def center_weights(self, save: SavedAt | None) -> Array:
        """The flat dense parameters P a sync server starts with: the centre of ``save``, else this replica.

        Raises:
            CheckpointError: the save cannot be read.
        """
        weights = self._replica.weights.clone()
        if save is not None:
            catalog, manifest = save.open()
            if any(file.state == CENTER_STATE for file in manifest.files):
                load_weights(self._replica.layout, read_state(catalog, manifest, CENTER_STATE), weights)
        return to_array(weights)

    def dense_state(self) -> tuple[Array, Array]:
        """Copies of the flat dense parameters and their optimizer's state, for a new peer."""
        weights, state = snapshot(self._replica.weights, self._replica.state)
        return to_array(weights), to_array(state)

    @property
    def synchronizer(self) -> ForegroundEasgd | None:
        """For its counters."""
        return self._sync

    def _guard(self, worker: HogwildWorker) -> None:
        try:
            worker.run()
        except BaseException as error:  # handed to run(), which raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self.stop()

    def _dense_replica(self, keeper: str) -> DenseReplica:
        spec, config = self._spec, self._spec.config
        build = functools.partial(
            build_dense,
            config.model,
            spec.dense_features,
            len(spec.tables),
            config.seed,
            embedded_dim=sum(self._dims.values()),
        )
        module: nn.Module = build()
        layout, optimizer = FlatLayout.of(module), DenseOptimizer(config.dense)
        memory, self.dense_from = start_dense(keeper, self._address, spec.dense_start, module, layout, optimizer)
        return DenseReplica(layout, memory.weights, memory.state, optimizer, build)

    def _worker(self, thread: int, router: Router) -> HogwildWorker:
        spec, config, address = self._spec, self._spec.config, self._address
        client = ShardedEmbeddingClient(
            address,
            thread,
            stream=address.index * config.train.hogwild_threads + thread,
            router=router,
            targets=spec.targets,
            batch=config.train.batch_size,
            lookahead=config.train.lookahead,
            wire=config.cluster.wire,
            mean=mean_pooled(config.embedding, spec.tables),
            max_gradient=config.embedding.max_gradient,
            locate=ShardLocator(address, self._coordinator, self._stop),
        )
        return HogwildWorker(
            self._replica,
            config.train.precision,
            client,
            self._reader,
            self._sync,
            self.ledger,
            self._rates,
            self._eval_weights,
            self._leases.first_pass,
            self._stop.is_set,
            self._leases.idle_s,
            self._gate,
            self._poison_due,
            lookahead=config.train.lookahead,
            pooled_shape=pooled_shape(config.train.batch_size, list(self._dims.values())),
            pooled_dtype=POOLED_TYPE[config.cluster.wire],
        )

    def _find_sync_server(self) -> Any | None:
        try:
            return ray.get(self._coordinator.sync_server.remote(self._address), timeout=_FIND_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):  # the lease decides about that
            return None

    def _eval_weights(self) -> Tensor:
        """The weights to evaluate: the centre where replicas are synchronized, fetched once per round."""
        if self._sync is None:
            return self._replica.weights
        with self._eval_lock:
            evaluation = self._leases.eval_round
            if self._eval_cache is None or self._eval_cache[0] != evaluation:
                self._eval_cache = (evaluation, self._sync.center())
            return self._eval_cache[1]
