"""`CalibratedModel`: a BoTorch model with calibrated marginals."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset

from botorch_calib._validation import check_one_of
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.models.predict import history
from botorch_calib.models.process import observed_process
from botorch_calib.models.requirements import check_process
from botorch_calib.models.surrogate import Surrogate, check_calibrator, checked_calibrator
from botorch_calib.models.wrapper import standardized_gp
from botorch_calib.posteriors.prediction import EXCESS


class CalibratedModel(Surrogate):
    """A single-output Gaussian model whose stated coverage is kept true by a calibrator.

    `from_history` makes it anew in each round, by replaying the training data of a fitted Gaussian
    process; `observe` keeps one model up to date, as in the paper. BoTorch's analytic and Monte
    Carlo acquisition functions, ``optimize_acqf`` and pending points take it as any model; several
    outcomes go into a `CalibratedModelList`.

    The calibrator keeps the coverage of statements about *observations* true, over all rounds
    together and for any sequence of data. The coverage of the objective rests on the model's noise
    variance: where that is too small, intervals of the objective stay too narrow at visited points,
    and ``excess="objective"`` widens them. `CalibratedPosterior` has the formulas.

    Args:
        model: A fitted model with one output, a Gaussian likelihood and a Gaussian posterior, as
            ``SingleTaskGP``, ``SingleTaskVariationalGP`` or ``MultiTaskGP`` with one output task,
            with any input transform and no or an increasing outcome transform; a
            `CensoredDelayModel` of one, whose calibrator sees residuals of observed values alone;
            an ensemble of such, as ``SaasFullyBayesianSingleTaskGP`` or a `NoisyEnsemble`, whose
            members' mixture is calibrated; or any model whose posterior has a cdf and its inverse.
        calibrator: Shared, not copied, with what it has learned. One that has learned nothing is
            moved to the model's device.
        denoise: Whether `posterior` is of the objective or, as in the paper on OCBO, of the
            observation.
        excess: ``"noise"`` or ``"objective"``, the source of spread in excess of the model's.
            The former keeps the model's own gain, for the search; the latter takes the model's
            noise variance for true, for claims about the objective. With ``denoise=False`` it does
            not matter.

    Raises:
        UnsupportedError: For models with several outputs, non-Gaussian likelihoods, outcome
            transforms that do not increase and calibrated models.
        InputDataError: If ``calibrator`` has learned on another device.

    Example:
        >>> model = CalibratedModel.from_history(gp, LocalizedConformal(0.2))
        >>> posterior = model.posterior(X)
        >>> upper = posterior.quantile(0.9)  # 20 x 1
        >>> model.observe(0.9 * X[:1], Y[:1])  # new data, scored by the model before its refit
    """

    calibrator: Calibrator

    def __init__(
        self, model: Model, calibrator: Calibrator, denoise: bool = True, excess: str = "noise"
    ) -> None:
        self._check_model(model)
        calibrator = checked_calibrator(observed_process(model), calibrator, denoise)
        check_one_of("excess", excess, EXCESS)
        super().__init__(model, calibrator=calibrator, denoise=denoise, excess=excess)

    @classmethod
    def from_history(
        cls,
        model: Model,
        calibrator: Calibrator,
        num_initial: int = 0,
        denoise: bool = True,
        residuals: str = "prequential",
        excess: str = "noise",
    ) -> CalibratedModel:
        """Calibrate a fitted Gaussian process by replaying its own training data.

        They must be stored in the order in which they were observed. Residuals are computed at the
        present hyperparameters. These were fitted to the same data, so with a few dozen of them
        residuals are somewhat smaller than those met at the time, and intervals too narrow. The
        coverage bounds hold for the replayed predictions; for those that were made, use `observe`.

        Args:
            model: A fitted exact Gaussian process, not a batch, an ensemble of such, or a
                `CensoredDelayModel`, whose observed data are replayed. For a ``MultiTaskGP`` these
                are the data of the output task.
            calibrator: Copied, with what it has learned: ``calibrator.fresh()`` starts anew.
            num_initial: Number of initial observations (the design) to skip.
            denoise: As in the class.
            residuals: ``"prequential"``, one step ahead, or ``"loo"``, leave-one-out, as a
                calibration set for ``QuantileRecalibrator(method="exact")``.
            excess: As in the class.

        Raises:
            UnsupportedError: If ``model`` is no exact Gaussian process: use `observe`.
            InputDataError: If there are no training data, or fewer than ``num_initial``.
        """
        cls._check_model(model)
        check_calibrator(calibrator)
        process = observed_process(model)
        X, z, *_ = history(process, residuals, num_initial)
        process.eval()
        replayed = deepcopy(calibrator).to(z)
        replayed.update(X, z)
        return cls(model, replayed, denoise=denoise, excess=excess)

    @staticmethod
    def _check_model(model: Model) -> None:
        check_process(observed_process(model))
        parts = [part for part in model.modules() if isinstance(part, Surrogate)]
        if any(part.calibrator is not None for part in parts):
            raise UnsupportedError(
                f"`model` must be a Gaussian model, and this {type(model).__name__} is calibrated "
                "already: give the model inside it."
            )

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, calibrator: Calibrator | None = None
    ) -> dict[str, Any]:
        """Arguments of the constructor, with an unfitted ``SingleTaskGP`` of the data.

        ``calibrator`` is by default a `LocalizedConformal` at ``alpha = 0.2``.
        """
        return {
            "model": standardized_gp(**super().construct_inputs(training_data)),
            "calibrator": LocalizedConformal(alpha=0.2) if calibrator is None else calibrator,
        }
