"""Sets up and runs a trainer's threads; the actor around it only speaks Ray."""

from __future__ import annotations

import functools
import threading
from typing import Any

from torch import Tensor, nn

from services.identity import Address
from services.memory.descriptors import KeeperError
from services.memory.header import HeaderError
from services.trainer.dense_memory import DenseMemory
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
from trainer.dense_step import DenseReplica
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout
from trainer.hogwild import HogwildWorker
from trainer.ledger import Ledger
from trainer.tables import mean_pooled, pooled_shape, table_dims


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
    ) -> None:
        self._address, self._spec, self._coordinator = address, spec, coordinator
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        config = spec.config
        self._dims = table_dims(config.model, config.embedding, spec.tables)
        self.ledger = Ledger()
        self.adopted = False
        self._replica = self._dense_replica(keeper)
        self._sync = (
            None
            if spec.sync_server is None
            else ForegroundEasgd(address, spec.sync_server, spec.sync_keeper, self._replica.weights, config.sync.gap)
        )
        if self._sync is not None and address.generation > 1 and not self.adopted:
            self._replica.weights.copy_(self._sync.center())
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
        threads = [
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

    def dense_weights(self) -> Array:
        """A copy of the flat dense parameters, P float32."""
        return to_array(self._replica.weights.clone())

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
        memory = None
        if self._address.generation > 1:
            try:
                memory = DenseMemory.adopt(keeper, self._address, layout)
                self.adopted = True
            except KeeperError:
                memory = None  # died on another node, or before it had memory: starts from the centre
            except HeaderError:  # died before its memory was complete
                DenseMemory.discard(keeper, self._address)
        if memory is None:
            memory = DenseMemory.create(keeper, self._address, module, layout, optimizer)
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
            lookahead=config.train.lookahead,
            pooled_shape=pooled_shape(config.train.batch_size, list(self._dims.values())),
            pooled_dtype=POOLED_TYPE[config.cluster.wire],
        )

    def _eval_weights(self) -> Tensor:
        """The weights to evaluate: the centre where replicas are synchronized, fetched once per round."""
        if self._sync is None:
            return self._replica.weights
        with self._eval_lock:
            evaluation = self._leases.eval_round
            if self._eval_cache is None or self._eval_cache[0] != evaluation:
                self._eval_cache = (evaluation, self._sync.center())
            return self._eval_cache[1]
