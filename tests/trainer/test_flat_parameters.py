from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from trainer.flat_parameters import ALIGNMENT, FlatLayout

torch.set_num_threads(1)


def _module(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(13, 7), nn.ReLU(), nn.Linear(7, 1))


def test_every_parameter_starts_on_a_cache_line_and_none_overlap() -> None:
    layout = FlatLayout.of(_module())
    end = 0
    for slot in layout.slots:
        assert slot.offset % ALIGNMENT == 0
        assert slot.offset >= end
        end = slot.offset + slot.numel
    assert layout.numel % ALIGNMENT == 0 and layout.numel >= end
    assert [slot.name for slot in layout.slots] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_bound_module_computes_from_the_buffer() -> None:
    source, bound = _module(1), _module(2)
    layout = FlatLayout.of(source)
    flat = torch.full((layout.numel,), torch.nan)
    layout.copy_from(source, flat)
    layout.bind(bound, flat)
    inputs = torch.rand(5, 13)
    assert torch.equal(source(inputs), bound(inputs))
    padding = torch.ones(layout.numel, dtype=torch.bool)
    for slot in layout.slots:
        padding[slot.offset : slot.offset + slot.numel] = False
    assert padding.any() and (flat[padding] == 0).all()

    flat.zero_()
    assert (bound(inputs) == 0).all()


def test_hogwild_update_between_forward_and_backward_is_allowed_only_through_a_second_binding() -> None:
    first, second = _module(1), _module(1)
    layout = FlatLayout.of(first)
    flat = torch.empty(layout.numel)
    layout.copy_from(first, flat)
    layout.bind(first, flat)
    layout.bind(second, flat)
    inputs = torch.rand(5, 13)

    loss = first(inputs).sum()
    flat.add_(0.1)  # what another thread's optimizer does
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(0.1)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(loss, list(first.parameters())))

    loss = first(inputs).sum()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, list(first.parameters()))


def test_gradients_land_at_their_parameters_offsets() -> None:
    module = _module()
    layout = FlatLayout.of(module)
    grads = torch.autograd.grad(module(torch.rand(5, 13)).sum(), list(module.parameters()))
    out = torch.full((layout.numel,), 9.0)
    layout.gather_grads(grads, out)
    for view, grad in zip(layout.views(out), grads, strict=True):
        assert torch.equal(view, grad)
    assert out.abs().sum() == pytest.approx(sum(float(grad.abs().sum()) for grad in grads))

    transposed = [grad.t().contiguous().t() if grad.ndim == 2 else grad for grad in grads]
    again = torch.empty(layout.numel)
    layout.gather_grads(transposed, again)
    assert torch.equal(again, out)


def test_json_form_survives_and_equality_sees_any_change() -> None:
    layout = FlatLayout.of(_module())
    text = json.dumps(layout.to_json())
    assert FlatLayout.from_json(json.loads(text)) == layout
    assert FlatLayout.of(nn.Sequential(nn.Linear(13, 6), nn.ReLU(), nn.Linear(6, 1))) != layout

    broken = json.loads(text)
    broken["slots"][1][2] += 16
    with pytest.raises(ValueError, match=r"should start at 96"):
        FlatLayout.from_json(broken)
    with pytest.raises(ValueError, match="not a layout"):
        FlatLayout.from_json({"slots": [["a", 3]]})
    with pytest.raises(ValueError, match="says 5 floats"):
        FlatLayout.from_json(json.loads(text) | {"numel": 5})


def test_misfits_are_refused_before_anything_is_written() -> None:
    module = _module()
    layout = FlatLayout.of(module)
    other = nn.Linear(13, 7)
    flat = torch.zeros(layout.numel)
    with pytest.raises(ValueError, match=r"does not fit the layout in 6 parameters: 0\.bias: None"):
        layout.bind(other, flat)
    with pytest.raises(ValueError, match="contiguous"):
        layout.bind(module, torch.zeros(layout.numel + 1))
    with pytest.raises(ValueError, match="contiguous"):
        layout.copy_from(module, torch.zeros(layout.numel, dtype=torch.float64))
    with pytest.raises(ValueError, match="got 1 gradients for 4"):
        layout.gather_grads([torch.zeros(3)], flat)
    with pytest.raises(ValueError, match=r"'0\.bias' has shape \[7\], got \[13\]"):
        layout.gather_grads([torch.zeros(7, 13), torch.zeros(13), torch.zeros(1, 7), torch.zeros(1)], flat)
    assert (flat == 0).all()
    with pytest.raises(ValueError, match="float32 only"):
        FlatLayout.of(nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="no parameters"):
        FlatLayout.of(nn.ReLU())
