from __future__ import annotations

import pytest
import torch
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config import ModelConfig
from trainer.dlrm import DLRMDense, build_dense

torch.set_num_threads(1)

_MODEL = ModelConfig(embedding_dim=8, dense_arch=(32, 8), over_arch=(16, 12, 1))


def test_equals_torchrec_dlrm_end_to_end() -> None:
    batch, features = 33, 5
    torch.manual_seed(3)
    names = [f"f{index}" for index in range(features)]
    tables = [
        EmbeddingBagConfig(name=f"t{name}", embedding_dim=8, num_embeddings=11, feature_names=[name]) for name in names
    ]
    reference = DLRM(EmbeddingBagCollection(tables=tables), 13, [32, 8], [16, 12, 1])
    model = build_dense(_MODEL, 13, features, seed=7)
    weights = {
        name: value for name, value in reference.state_dict().items() if not name.startswith(("sparse_arch", "inter"))
    }
    model.load_state_dict(weights, strict=True)

    dense = torch.rand(batch, 13)
    lengths = torch.randint(0, 4, (features * batch,))
    ids = KeyedJaggedTensor(keys=names, values=torch.randint(0, 11, (int(lengths.sum()),)), lengths=lengths)
    expected = reference(dense, ids).squeeze(1)
    embedded = reference.sparse_arch(ids).detach().requires_grad_()
    logits = model(dense, embedded)
    assert logits.shape == (batch,)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)

    expected.sum().backward()
    logits.sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, reference.get_parameter(name).grad, rtol=1e-5, atol=1e-6)
    assert embedded.grad is not None and embedded.grad.abs().sum() > 0


def test_weights_follow_the_seed_and_leave_the_random_state_alone() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, again, other = (build_dense(_MODEL, 13, 4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(left, right) for left, right in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize(("dense_features", "sparse_features"), [(0, 3), (3, 0), (1, 1)])
def test_either_kind_of_feature_may_be_absent(dense_features: int, sparse_features: int) -> None:
    model = build_dense(_MODEL, dense_features, sparse_features, seed=0)
    logits = model(torch.rand(6, dense_features), torch.rand(6, sparse_features, 8))
    assert logits.shape == (6,)
    assert torch.isfinite(logits).all()


def test_impossible_sizes_name_the_setting() -> None:
    with pytest.raises(ValueError, match="at least one is needed"):
        build_dense(_MODEL, 0, 0, seed=0)
    with pytest.raises(ValueError, match=r"model\.over_arch .* got \[1\]"):
        DLRMDense(3, 3, (8,), (1,))
