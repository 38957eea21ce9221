"""BoTorch's compiled kernel of log hypervolume improvement changes no value.

Other tests run without the kernel, since its compilation would take most of their time.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import ROOT

pytestmark = pytest.mark.slow

# A separate process, since tests/conftest.py prevents the kernel from being loaded.
SCRIPT = """
import torch
from botorch.acquisition.multi_objective import logei
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel, CalibratedModelList, qLogCalibratedNoisyExpectedHypervolumeImprovement
)
from tests.gps import far_from_gaussian, make_data, make_gp

torch.manual_seed(0)
X, Y, _ = make_data()
front = torch.cat([Y, -Y], dim=-1)
ref_point = torch.tensor([-2.0, -2.0]).double()
model = CalibratedModelList(
    *(CalibratedModel(make_gp(sign=sign), far_from_gaussian()) for sign in (1.0, -1.0))
)
sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
functions = [
    qLogCalibratedNoisyExpectedHypervolumeImprovement(model, ref_point, X, sampler=sampler),
    logei.qLogExpectedHypervolumeImprovement(
        model, ref_point, FastNondominatedPartitioning(ref_point, front), sampler
    ),
]
new = torch.rand(4, 2, 2).double().requires_grad_()
kernel = logei._C
assert kernel is not None
for function in functions:
    found = []
    for logei._C in (kernel, None):
        value = function(new)
        found.append((value, *torch.autograd.grad(value.sum(), new)))
    assert_close(*found, rtol=1e-8, atol=1e-8)
    assert not torch.equal(*(gradient for _, gradient in found)), "the kernel was not used"
"""


def test_values_and_gradients(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # with `ninja`
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "TORCH_EXTENSIONS_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.rglob("*.so")]
