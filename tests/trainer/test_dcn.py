from __future__ import annotations

import pytest
import torch
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config import ModelConfig
from trainer.dlrm import build_dense

torch.set_num_threads(1)

_MODEL = ModelConfig(
    arch="dcnv2", embedding_dim=8, dense_arch=(32, 8), over_arch=(16, 12, 1), dcn_num_layers=3, dcn_low_rank_dim=5
)


def test_equals_torchrec_dlrm_dcn_end_to_end() -> None:
    batch, features = 33, 5
    torch.manual_seed(3)
    names = [f"f{index}" for index in range(features)]
    tables = [
        EmbeddingBagConfig(name=f"t{name}", embedding_dim=8, num_embeddings=11, feature_names=[name]) for name in names
    ]
    reference = DLRM_DCN(EmbeddingBagCollection(tables=tables), 13, [32, 8], [16, 12, 1], 3, 5)
    model = build_dense(_MODEL, 13, features, seed=7)
    weights = {name: value for name, value in reference.state_dict().items() if not name.startswith("sparse_arch")}
    model.load_state_dict(weights, strict=True)

    dense = torch.rand(batch, 13)
    lengths = torch.randint(0, 4, (features * batch,))
    ids = KeyedJaggedTensor(keys=names, values=torch.randint(0, 11, (int(lengths.sum()),)), lengths=lengths)
    expected = reference(dense, ids).squeeze(1)
    embedded = reference.sparse_arch(ids).detach().requires_grad_()
    logits = model(dense, embedded)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)

    expected.sum().backward()
    logits.sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, reference.get_parameter(name).grad, rtol=1e-5, atol=1e-6)
    assert embedded.grad is not None and embedded.grad.abs().sum() > 0
    flat = model(dense, embedded.flatten(1))  # the layout of tables that differ in width
    assert torch.equal(flat, logits)


@pytest.mark.parametrize(("dense_features", "sparse_features"), [(0, 3), (3, 0)])
def test_either_kind_of_feature_may_be_absent(dense_features: int, sparse_features: int) -> None:
    model = build_dense(_MODEL, dense_features, sparse_features, seed=0)
    logits = model(torch.rand(6, dense_features), torch.rand(6, sparse_features, 8))
    assert logits.shape == (6,)
    assert torch.isfinite(logits).all()


def test_bf16_stays_close() -> None:
    model = build_dense(_MODEL, 13, 4, seed=1)
    dense, embedded = torch.rand(64, 13), torch.rand(64, 4, 8)
    with torch.no_grad():
        exact = model(dense, embedded)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = model(dense, embedded.bfloat16())
    assert 0 < float((narrow.float() - exact).abs().max()) < 0.05 * float(exact.abs().max() + 1)


def test_only_dcnv2_takes_tables_of_several_widths() -> None:
    assert build_dense(_MODEL, 13, 2, seed=0, embedded_dim=20)(torch.rand(3, 13), torch.rand(3, 20)).shape == (3,)
    dlrm = _MODEL.model_copy(update={"arch": "dlrm"})
    with pytest.raises(ValueError, match=r"embedding\.tables\.<name>\.dim .* got 20 columns in 2 tables"):
        build_dense(dlrm, 13, 2, seed=0, embedded_dim=20)
