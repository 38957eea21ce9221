"""`CalibratedModel`: a BoTorch model with calibrated marginals."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset

from botorch_calib._validation import check_flag, check_one_of
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.models.predict import history, slots_of
from botorch_calib.models.process import observed_process
from botorch_calib.models.requirements import check_process
from botorch_calib.models.surrogate import Surrogate, check_calibrator, checked_calibrator
from botorch_calib.models.wrapper import standardized_gp
from botorch_calib.posteriors.prediction import EXCESS


class CalibratedModel(Surrogate):
    """A single-output model whose predictive distributions are corrected by a calibrator.

    In each round, either make a new model by `from_history`, whose calibrator learns from the
    training data of a fitted Gaussian process, or update the same model by `observe`, as in OCBO
    (Deshpande et al., 2024). The model works with BoTorch's analytic and Monte Carlo acquisition
    functions, ``optimize_acqf`` and pending points. For several outcomes see `CalibratedModelList`.

    For any sequence of data, calibrated intervals of *observations* have the nominal coverage on
    average over all rounds. The coverage of the objective depends on the model's noise variance. If
    the noise variance is too small, intervals of the objective are too narrow at visited points,
    and ``excess="objective"`` widens these intervals. For formulas see `CalibratedPosterior`.

    Args:
        model: One of

            * a fitted model with one output, a Gaussian likelihood and a Gaussian posterior, such
              as ``SingleTaskGP``, ``SingleTaskVariationalGP`` or ``MultiTaskGP`` with one output
              task (it may have any input transform, and an increasing outcome transform);
            * a `CensoredDelayModel` (the calibrator learns from observed values only);
            * an ensemble, such as ``SaasFullyBayesianSingleTaskGP`` or a `NoisyEnsemble` (the
              mixture of its members is calibrated);
            * any model whose posterior has a cdf and a quantile function.
        calibrator: The calibrator, which is shared, not copied. A calibrator that has not yet
            learned anything is moved to the model's device.
        denoise: Whether `posterior` predicts the objective (True) or observations (False, as in
            OCBO).
        excess: The assumed source of calibrated spread beyond the model's own spread. ``"noise"``
            (for acquisition functions) keeps the model's own gain ``v / (v + n)``, the fraction of
            an observation's deviation that is attributed to the objective, where ``v`` and ``n``
            are the variances of the objective and the noise. ``"objective"`` (for claims about the
            objective) assumes that the noise variance is correct. With ``denoise=False``,
            ``excess`` has no effect.

    Raises:
        UnsupportedError: If ``model`` has several outputs, a non-Gaussian likelihood or an outcome
            transform that does not increase, or is calibrated already.
        InputDataError: If ``calibrator`` has learned on another device, or an option is malformed.

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
        denoise = check_flag("denoise", denoise)
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
        """Calibrate a fitted Gaussian process by replaying its training data.

        To replay means to predict each training observation, by default from earlier observations,
        and to update the calibrator with the residual. The training data must be in the order in
        which they were observed. Residuals are computed at the current hyperparameters, which were
        fitted to the same data. With a few dozen data points, residuals are therefore smaller than
        at the time of observation, and intervals are too narrow. The calibrator's coverage bounds
        hold for the replayed predictions; use `observe` for bounds on the original predictions.

        Args:
            model: A fitted exact Gaussian process without batch dimensions, an ensemble of exact
                Gaussian processes, a `CensoredDelayModel`, of which only observed data are
                replayed, or a prior-fitted network, which takes its training data as an input. For
                a ``MultiTaskGP``, only data from the output task are replayed.
            calibrator: A calibrator, which does not change: a copy continues to learn from what the
                calibrator has learned. To start from the beginning, pass ``calibrator.fresh()``.
            num_initial: Number of initial observations (the design) to skip.
            denoise: See the class.
            residuals: ``"prequential"`` for one-step-ahead residuals, or ``"loo"`` for
                leave-one-out residuals, which ``QuantileRecalibrator(method="exact")`` expects.
            excess: See the class.

        Raises:
            UnsupportedError: If the data of ``model`` cannot be replayed; then use `observe`.
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
        if any(slots_of(part).calibrator is not None for part in model.modules()):
            raise UnsupportedError(
                f"`model` must be a Gaussian model, and this {type(model).__name__} is calibrated "
                "already: pass the model inside it."
            )

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, calibrator: Calibrator | None = None
    ) -> dict[str, Any]:
        """Return keyword arguments of the constructor, with an unfitted ``SingleTaskGP``.

        The process has the data ``training_data``. The default ``calibrator`` is
        ``LocalizedConformal(alpha=0.2)``.
        """
        return {
            "model": standardized_gp(**super().construct_inputs(training_data)),
            "calibrator": LocalizedConformal(alpha=0.2) if calibrator is None else calibrator,
        }
